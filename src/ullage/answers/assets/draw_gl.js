// Draws rectangles with WebGL2: one instance each, from a buffer that is filled once.
//
// A canvas that draws (this, or draw_pixels.js) has: canvas; resize(width, height); load(items) with
// integer x0, x1, y, size and the colour number and mark of each; begin(view, colors); draw(first,
// end) as often as needed; finish().

const VERTEX_SHADER = `#version 300 es
layout(location = 0) in ivec4 box;    // x0, x1, y, height
layout(location = 1) in uvec2 style;  // colour number, mark
uniform ivec2 origin;
uniform vec2 part;                    // of a unit, from the origin to the edge of the view
uniform vec2 scale;                   // pixels per unit
uniform vec2 size;                    // of the canvas, in pixels
uniform vec3 colors[32];
uniform vec3 ground;
flat out vec3 color;
flat out vec2 extent;
out vec2 place;
void main() {
  vec2 corner = vec2(gl_VertexID & 1, gl_VertexID >> 1);
  ivec2 low = ivec2(box.x, box.z) - origin;
  ivec2 high = ivec2(box.y, box.z + box.w) - origin;
  vec2 from = floor((vec2(low) - part) * scale + 0.5);
  vec2 to = max(floor((vec2(high) - part) * scale + 0.5), from + 1.0);
  from = max(from, vec2(-2.0));
  to = min(to, size + 2.0);
  extent = to - from;
  place = corner * extent;
  vec3 full = colors[style.x];
  color = style.y == 1u ? mix(ground, full, 0.18) : full;
  gl_Position = vec4((from + place) / size * 2.0 - 1.0, 0.0, 1.0);
}`;

// Where there is room for it a rectangle has a darker edge, so that equal neighbours keep apart.
const FRAGMENT_SHADER = `#version 300 es
precision highp float;
flat in vec3 color;
flat in vec2 extent;
in vec2 place;
out vec4 result;
void main() {
  bool isEdge = extent.x > 5.0 && extent.y > 4.0 && (place.x > extent.x - 1.0 || place.y < 1.0);
  result = vec4(isEdge ? color * 0.72 : color, 1.0);
}`;

// Chromium does not always admit that its WebGL is computed.
const SOFTWARE_RENDERER = /swiftshader|llvmpipe|softpipe|basic render/i;

class GlCanvas {
  /** Null where there is no WebGL2, or only one without a GPU: plain pixels are faster then. */
  static create({ mayBeSlow = false } = {}) {
    const canvas = document.createElement("canvas");
    const gl = canvas.getContext("webgl2", {
      alpha: false,
      antialias: false,
      depth: false,
      preserveDrawingBuffer: true, // a picture may take several frames
      failIfMajorPerformanceCaveat: !mayBeSlow,
    });
    if (!gl) return null;
    const info = gl.getExtension("WEBGL_debug_renderer_info");
    const name = info ? gl.getParameter(info.UNMASKED_RENDERER_WEBGL) : "";
    if (!mayBeSlow && SOFTWARE_RENDERER.test(name)) return null;
    return new GlCanvas(canvas, gl);
  }

  constructor(canvas, gl) {
    this.canvas = canvas;
    this.gl = gl;
    this.batch = 30000; // instances a frame; page time decides whether it grows
    this.program = gl.createProgram();
    for (const [type, source] of [[gl.VERTEX_SHADER, VERTEX_SHADER], [gl.FRAGMENT_SHADER, FRAGMENT_SHADER]]) {
      const shader = gl.createShader(type);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(this.program, shader);
    }
    gl.linkProgram(this.program);
    if (!gl.getProgramParameter(this.program, gl.LINK_STATUS)) {
      throw new Error(`the shader cannot be used: ${gl.getProgramInfoLog(this.program)}`);
    }
    gl.useProgram(this.program);
    this.places = {};
    for (const name of ["origin", "part", "scale", "size", "colors", "ground"]) {
      this.places[name] = gl.getUniformLocation(this.program, name);
    }
    this.boxes = gl.createBuffer();
    this.styles = gl.createBuffer();
    for (const location of [0, 1]) {
      gl.enableVertexAttribArray(location);
      gl.vertexAttribDivisor(location, 1);
    }
  }

  resize(width, height) {
    this.canvas.width = width;
    this.canvas.height = height;
    this.gl.viewport(0, 0, width, height);
  }

  load({ boxes, styles }) {
    const { gl } = this;
    gl.bindBuffer(gl.ARRAY_BUFFER, this.boxes);
    gl.bufferData(gl.ARRAY_BUFFER, boxes, gl.STATIC_DRAW);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.styles);
    gl.bufferData(gl.ARRAY_BUFFER, styles, gl.STATIC_DRAW);
  }

  begin(view, { ground, colors }) {
    const { gl, places, canvas } = this;
    const origin = [Math.floor(view.x0), Math.floor(view.y0)];
    gl.uniform2i(places.origin, ...origin);
    gl.uniform2f(places.part, view.x0 - origin[0], view.y0 - origin[1]);
    gl.uniform2f(places.scale, canvas.width / (view.x1 - view.x0), canvas.height / (view.y1 - view.y0));
    gl.uniform2f(places.size, canvas.width, canvas.height);
    gl.uniform3fv(places.colors, colors.flat().map((part) => part / 255));
    gl.uniform3fv(places.ground, ground.map((part) => part / 255));
    gl.clearColor(...ground.map((part) => part / 255), 1);
    gl.clear(gl.COLOR_BUFFER_BIT);
  }

  draw(first, end) {
    const { gl } = this;
    gl.bindBuffer(gl.ARRAY_BUFFER, this.boxes);
    gl.vertexAttribIPointer(0, 4, gl.INT, 16, first * 16);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.styles);
    gl.vertexAttribIPointer(1, 2, gl.UNSIGNED_BYTE, 2, first * 2);
    gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, end - first);
  }

  finish() {}
}
