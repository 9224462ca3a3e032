// Scales, and what else is drawn on canvases in the colours of the theme.

const LABEL_WIDTH = 130; // of a label on the axis of time, at most
const SCALE_FONT = "11px system-ui, sans-serif";
const THEME_COLORS = ["ground", "segment", "text", "muted", "line", "accent", "red"];

/** The theme's colours by name, as they are now. */
function readTheme() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(THEME_COLORS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

const pixelRatio = () => window.devicePixelRatio || 1;

/** Gives a canvas the pixels of a size on the page; whether it had others. */
function fitCanvas(canvas, size) {
  const width = Math.max(1, Math.round(size.width * pixelRatio()));
  const height = Math.max(1, Math.round(size.height * pixelRatio()));
  const isChanged = canvas.width !== width || canvas.height !== height;
  if (isChanged) Object.assign(canvas, { width, height });
  return isChanged;
}

/** An empty scale canvas of its own size. */
function clearScale(canvas, { width, height }, theme) {
  fitCanvas(canvas, { width, height });
  const context = canvas.getContext("2d");
  context.setTransform(pixelRatio(), 0, 0, pixelRatio(), 0, 0);
  context.clearRect(0, 0, width, height);
  if (context.font !== SCALE_FONT) context.font = SCALE_FONT;
  context.textBaseline = "middle";
  context.fillStyle = theme.muted;
  return { context, width, height };
}

/** The highest bytes of a scale: with what the GPU holds, unless that is far above. */
function scaleTop(highest, capacity) {
  return 1.05 * Math.max(highest, capacity && capacity.bytes <= 3 * highest ? capacity.bytes : 0);
}

/** A line where the GPU is full; a dashed one at the upper edge where that is above the scale. */
function drawCapacity(context, { width, height, ratio = 1 }, top, capacity, theme) {
  if (!capacity) return;
  const isAbove = capacity.bytes > top;
  const y = isAbove ? 0 : Math.round(height * (1 - capacity.bytes / top));
  context.fillStyle = theme.red;
  const dash = isAbove ? 6 * ratio : width;
  for (let x = 0; x < width; x += 2 * dash) context.fillRect(x, y, dash, Math.max(1, Math.round(1.5 * ratio)));
  context.font = `${Math.round(11 * ratio)}px system-ui, sans-serif`;
  context.textAlign = "right";
  context.textBaseline = "middle";
  const text = `${capacity.text}${isAbove ? " ↑" : ""}`;
  const left = width - 12 * ratio - context.measureText(text).width;
  const below = y + 11 * ratio;
  context.fillStyle = theme.ground;
  context.globalAlpha = 0.8;
  context.fillRect(left, below - 7 * ratio, width - 4 * ratio - left, 14 * ratio);
  context.globalAlpha = 1;
  context.fillStyle = theme.red;
  context.fillText(text, width - 8 * ratio, below);
}

/** What a view shows to the right, with labels of its ticks; `format` gets a tick and the step to the next. */
function drawAxis(context, width, { x0, x1 }, { theme, format, isWhole }) {
  const ticks = makeTicks(x0, x1, width / LABEL_WIDTH, { isWhole });
  context.textAlign = "center";
  for (const tick of ticks) {
    const x = ((tick - x0) / (x1 - x0)) * width;
    context.fillStyle = theme.line;
    context.fillRect(Math.round(x), 0, 1, 5);
    context.fillStyle = theme.muted;
    const text = format(tick, ticks[1] - ticks[0]);
    const isAtEnd = x < LABEL_WIDTH / 2 || x > width - LABEL_WIDTH / 2; // others are not measured
    const half = isAtEnd ? context.measureText(text).width / 2 : 0;
    context.fillText(text, clamp(x, half, width - half), 15);
  }
}

/** Bytes upward, from low to high. */
function drawScale({ context, width, height }, low, high, theme) {
  context.textAlign = "right";
  for (const tick of makeTicks(low, high, Math.max(3, height / 45), { isBinary: true })) {
    const y = height - ((tick - low) / (high - low)) * height;
    if (y < 8) continue;
    context.fillStyle = theme.line;
    context.fillRect(width - 5, Math.round(y) - 1, 5, 1);
    context.fillStyle = theme.muted;
    context.fillText(formatTick(tick), width - 8, Math.min(height - 6, y));
  }
}
