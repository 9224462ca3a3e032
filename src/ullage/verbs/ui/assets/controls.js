// The fields and sliders of the calculator.

const BATCHES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
const LENGTHS = [64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536, 98304, 131072];
const IMAGES = [64, 96, 128, 160, 192, 224, 256, 288, 320, 384, 448, 512, 640, 768, 1024];
const ACCUMULATIONS = [1, 2, 4, 8, 16, 32, 64];
const USERS = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024];
const RANKS = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const RANK_COUNTS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const SPLITS = [1, 2, 4, 8, 16];
const SHARDINGS = {
  alone: "one GPU", ddp: "data parallel", zero1: "ZeRO-1", zero2: "ZeRO-2 (FSDP)", fsdp: "ZeRO-3 (FSDP)",
};
const CHECKPOINTINGS = { none: "none", selective: "selective", alternate: "selective, every 2nd product", full: "full: every block", 2: "every 2nd block", 4: "every 4th block" };
const PRECISIONS = {
  fp32: "fp32", bf16: "bf16", fp16: "fp16",
  "amp-bf16": "fp32, autocast to bf16", "amp-fp16": "fp32, autocast to fp16",
  "mixed-bf16": "bf16, fp32 masters", "mixed-fp16": "fp16, fp32 masters",
};
const GRADIENTS = { same: "as the parameters", fp32: "summed in fp32", both: "in both at the step" };
const LOSSES = { full: "all logits at once", chunked: "in chunks of tokens", fused: "fused with the head" };
const BUCKETS = { copies: "beside the gradients", views: "hold the gradients", none: "none" };

const range = (first, last, step) => Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, i) => first + i * step);

export class Controls {
  constructor(form, catalogue, { state, onChange }) {
    this.form = form;
    this.models = new Map(catalogue.models.map((one) => [one.name, one]));
    this.state = state;
    this.onChange = onChange;
    this.fields = {};
    this.ownShape = null;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.append(
      this._modes(),
      this._group("Model", "", this._select("model", "model", group(catalogue.models, (one) => one.family)), this._own(),
        this._slider("depth", "layers", "layers"), this._slider("width", "width", "width of the residual stream")),
      this._group("Batch", "train", this._slider("batch", "batch", "samples of one pass"), this._slider("length", "sequence", "tokens of a sample"),
        this._slider("image", "image", "pixels of an image's side"), this._slider("accumulation", "passes a step", "forward and backward passes before each step")),
      this._group("Training", "train", this._select("precision", "precision", { "": named(catalogue.precisions, PRECISIONS) }),
        this._select("optimizer", "optimizer", { "": Object.entries(catalogue.optimizers).map(([name, what]) => [name, name, what]) }),
        this._select("checkpointing", "checkpointing", { "": Object.entries(CHECKPOINTINGS) }),
        this._select("attention", "attention", { "": [["sdpa", "scaled dot product"], ["eager", "eager"]] }),
        this._select("gradients", "gradients", { "": named(catalogue.gradients, GRADIENTS) }),
        this._select("loss", "loss", { "": [["", "as in the library"], ...named(catalogue.losses, LOSSES)] }),
        this._select("compiled", "compiled", { "": [["no", "no: eager"], ["yes", "torch.compile"]] }),
        this._select("library", "code", { "": catalogue.libraries.map((name) => [name, name]) }),
        this._select("torch", "PyTorch", { "": [["", "newest for the GPU"], ...catalogue.torches.map((name) => [name, name])] }),
        this._select("trains", "trains", { "": [["all", "all weights"], ["lora", "LoRA adapters"], ["qlora", "QLoRA: weights in 4 bits"]] }),
        this._slider("rank", "LoRA rank", "rank of the adapters"),
        this._select("adapters", "adapters in", { "": [["", "as in the library"], ["fp32", "fp32"], ["bf16", "bf16"], ["fp16", "fp16"]] }),
        this._select("targets", "adapters at", { "": [["all-linear", "all linear layers"], ["q_proj,v_proj", "queries and values"]] })),
      this._group("Requests", "serve", this._slider("context", "context", "tokens of the longest request, prompt and answer"), this._slider("users", "users", "requests of that length at once")),
      this._group("Serving", "serve", this._select("weights", "weights", { "": Object.entries(catalogue.weights).map(([name, what]) => [name, name, what]) }),
        this._select("kv", "KV cache", { "": named(catalogue.kv, { auto: "16 bits" }) }), this._select("engine", "engine", { "": [["vllm", "vLLM"], ["transformers", "transformers"]] })),
      this._group("Devices", "", this._select("gpu", "GPU", groupGpus(catalogue.gpus)), this._slider("tp", "tensor ranks", "GPUs that share every layer"),
        this._select("sharding", "parallelism", { "": named(["alone", ...catalogue.shardings], SHARDINGS) }),
        this._select("buckets", "buckets", { "": named(catalogue.buckets, BUCKETS) }), this._slider("data", "data ranks", "ranks with samples of their own"), this._slider("tensor", "tensor ranks", "ranks that divide each layer"),
        this._select("sequence", "sequence is", { "": [["no", "whole between layers"], ["yes", "divided, too"]] }),
        this._slider("cp", "context ranks", "ranks that share out each sample's sequence"), this._slider("ep", "expert ranks", "ranks that divide the experts"),
        this._slider("pipeline", "stages", "pipeline stages"), this._slider("micro", "micro-batches", "micro-batches of a step in the pipeline"),
        this._select("schedule", "schedule", { "": [["1f1b", "1F1B"], ["gpipe", "GPipe"]] }),
        this._select("offload", "shards in", { "": [["no", "GPU memory"], ["yes", "host memory"], ["nvme", "NVMe disks"]] })),
    );
    this.show();
  }

  /** The model as it is before it is turned: built in, or what the server said of the user's own. */
  get shape() {
    return this.state.config ? this.ownShape : this.models.get(this.state.model);
  }

  /** What the server is asked. */
  query() {
    const { state } = this;
    const query = { gpu: state.gpu };
    if (state.config) query.config = parseConfig(state.config);
    else query.model = state.model;
    if (state.depth) query.depth = state.depth;
    if (state.width) query.width = state.width;
    if (state.mode === "train") query.recipe = this._recipe();
    else query.serve = { context: state.context, users: state.users, tensor_parallel: state.tp, engine: state.engine, weights: state.weights, kv: state.kv };
    return query;
  }

  _recipe() {
    const { state, shape } = this;
    const { batch, accumulation, precision, optimizer, attention, library } = state;
    const recipe = { batch, accumulation, precision, optimizer, attention, library, compiled: state.compiled === "yes" };
    if (precision.startsWith("mixed")) recipe.gradients = state.gradients;
    if (state.loss) recipe.loss = state.loss;
    if (state.torch) recipe.torch = state.torch;
    recipe.checkpointing = /^\d+$/.test(state.checkpointing) ? Number(state.checkpointing) : state.checkpointing;
    if (shape?.reads_tokens ?? true) recipe.length = state.length;
    if (shape?.sees_images ?? true) recipe.image = state.image;
    if (state.trains !== "all") recipe.lora = { rank: state.rank, targets: state.targets.split(","), is_quantized: state.trains === "qlora", dtype: state.adapters || null };
    if (state.sharding !== "alone") {
      recipe.layout = { sharding: state.sharding, data: state.data, tensor: state.tensor, context: state.cp, pipeline: state.pipeline };
      if (["ddp", "zero1"].includes(state.sharding)) recipe.layout.buckets = state.buckets;
      if (state.pipeline > 1) Object.assign(recipe.layout, { micro_batches: state.micro, schedule: state.schedule });
      if (state.tensor > 1) recipe.layout.sequence = state.sequence === "yes";
      if (this._canDivideExperts()) recipe.layout.expert = state.ep;
      if (state.sharding === "fsdp") Object.assign(recipe.layout, { offload: state.offload !== "no", nvme: state.offload === "nvme" });
    }
    return recipe;
  }

  _canDivideExperts() {
    const { shape, state } = this;
    return (shape?.has_experts ?? true) && ["zero2", "fsdp"].includes(state.sharding) && state.tensor === 1;
  }

  /** The fields show the state; those that do not matter are not there. */
  show() {
    const { shape, state } = this;
    const isTraining = state.mode === "train";
    const isSpread = isTraining && state.sharding !== "alone";
    const lengths = LENGTHS.filter((one) => one <= Math.max(shape?.longest ?? 0, 4096));
    const [depth, step] = [shape?.depth, shape?.width_step];
    this._values("depth", depth ? range(1, Math.max(2 * depth, 8), 1) : null, state.depth || depth);
    this._values("width", step ? range(step, Math.max(2 * shape.width, 4 * step), step) : null, state.width || shape?.width);
    this._values("batch", BATCHES);
    this._values("length", (shape?.reads_tokens ?? true) ? lengths : null);
    this._values("image", (shape?.sees_images ?? false) ? IMAGES : null);
    this._values("accumulation", ACCUMULATIONS);
    this._values("rank", state.trains === "all" ? null : RANKS);
    this._values("context", lengths);
    this._values("users", USERS);
    this._values("tp", isTraining ? null : SPLITS);
    this._values("data", isSpread ? RANK_COUNTS : null);
    for (const name of ["tensor", "pipeline"]) this._values(name, isSpread ? SPLITS : null);
    this._values("cp", isSpread && (shape?.reads_tokens ?? true) ? SPLITS : null);
    this._values("ep", isSpread && this._canDivideExperts() ? RANKS : null);
    this._values("micro", isSpread && state.pipeline > 1 ? RANK_COUNTS : null);
    this.fields.sharding.row.hidden = !isTraining;
    this.fields.gradients.row.hidden = !state.precision.startsWith("mixed");
    for (const name of ["adapters", "targets"]) this.fields[name].row.hidden = state.trains === "all";
    this.fields.buckets.row.hidden = !(isSpread && ["ddp", "zero1"].includes(state.sharding));
    this.fields.sequence.row.hidden = !(isSpread && state.tensor > 1);
    this.fields.schedule.row.hidden = !(isSpread && state.pipeline > 1);
    this.fields.offload.row.hidden = !(isSpread && state.sharding === "fsdp");
    for (const [name, field] of Object.entries(this.fields)) if (field.control) field.control.value = state[name];
    for (const part of this.form.querySelectorAll("fieldset[data-mode]")) part.hidden = part.dataset.mode !== state.mode;
    for (const radio of this.modes) radio.checked = radio.value === state.mode;
    const { control: models } = this.fields.model;
    models.disabled = state.config !== "";
    for (const option of models.options) option.disabled = !this.models.get(option.value)[isTraining ? "trains" : "serves"];
    if (this.ownText.value !== state.config) this.ownText.value = state.config;
    if (state.config) this.own.open = true;
  }

  /** Changes some of the state, and shows it. */
  set(changes) {
    Object.assign(this.state, changes);
    this.show();
    this.onChange();
  }

  _group(name, mode, ...fields) {
    return makeElement("fieldset", { "data-mode": mode || null }, makeElement("legend", {}, name), ...fields);
  }

  _modes() {
    this.modes = ["train", "serve"].map((value) => makeElement("input", { type: "radio", name: "mode", value, onchange: () => this.set({ mode: value }) }));
    const labels = this.modes.map((radio, index) => makeElement("label", {}, radio, ["Train", "Serve"][index]));
    return makeElement("fieldset", {}, makeElement("legend", { class: "unseen" }, "What for"), makeElement("div", { class: "segmented" }, ...labels));
  }

  _select(name, label, groups) {
    const control = makeElement("select", { id: `field-${name}`, name });
    for (const [title, options] of Object.entries(groups)) {
      const made = options.map(([value, text, note]) => makeElement("option", { value, title: note }, text));
      control.append(...(title ? [makeElement("optgroup", { label: title }, ...made)] : made));
    }
    control.addEventListener("change", () => {
      this.set(name === "model" ? { model: control.value, depth: 0, width: 0 } : { [name]: control.value });
    });
    const row = makeElement("div", { class: "field" }, makeElement("label", { for: control.id }, label), control);
    this.fields[name] = { row, control };
    return row;
  }

  /** A slider over round values, and a number beside it that may be any. */
  _slider(name, label, what) {
    const slider = makeElement("input", { type: "range", id: `field-${name}`, name, min: 0, step: 1 });
    const number = makeElement("input", { type: "number", min: 1, max: 1e8, "aria-label": what, inputmode: "numeric" });
    const field = { slider, number, values: [], label: makeElement("label", { for: slider.id, title: what }, label) };
    slider.addEventListener("input", () => this.set({ [name]: field.values[slider.value] }));
    number.addEventListener("change", () => {
      const value = Math.round(Number(number.value));
      this.set(value >= 1 ? { [name]: value } : {});
    });
    field.row = makeElement("div", { class: "field slider" }, field.label, slider, number);
    this.fields[name] = field;
    return field.row;
  }

  _values(name, values, value = this.state[name]) {
    const field = this.fields[name];
    field.row.hidden = values === null;
    if (values === null) return;
    field.values = values;
    field.slider.max = values.length - 1;
    field.slider.value = nearest(values, value);
    field.slider.setAttribute("aria-valuetext", `${formatCount(value)} ${field.number.getAttribute("aria-label")}`);
    field.number.value = value;
    field.number.step = name === "width" ? values[0] : 1;
    if (name === "width") field.number.min = values[0];
  }

  /** A configuration of the user's own: pasted, chosen, or dropped anywhere on the controls. */
  _own() {
    this.ownText = makeElement("textarea", { id: "own-text", spellcheck: "false", placeholder: '{"model_type": "llama", …}', "aria-label": "config.json" });
    const file = makeElement("input", { type: "file", accept: ".json,application/json", "aria-label": "choose a config.json" });
    const use = (text) => {
      this.ownShape = null;
      this.set({ config: text.trim(), depth: 0, width: 0 });
    };
    this.ownText.addEventListener("change", () => use(this.ownText.value));
    const read = async (chosen) => use(chosen.size > 2 ** 20 ? "the file has more than 1 MiB: it is not a config.json" : await chosen.text());
    file.addEventListener("change", () => file.files[0] && read(file.files[0]));
    acceptDrops(this.form, read);
    const clear = makeElement("button", { type: "button", onclick: () => { file.value = ""; use(""); } }, "Use the list");
    this.own = makeElement("details", { id: "own" }, makeElement("summary", {}, "My own config.json"),
      makeElement("p", { class: "quiet" }, "Paste it, choose it, or drop it here."), this.ownText,
      makeElement("div", { class: "row" }, file, clear));
    return this.own;
  }
}

/** Calls back with a file that is dropped on an element. */
export function acceptDrops(element, use) {
  const isFile = (event) => event.dataTransfer?.types.includes("Files");
  element.addEventListener("dragover", (event) => {
    if (!isFile(event)) return;
    event.preventDefault();
    element.classList.add("dragging");
  });
  element.addEventListener("dragleave", () => element.classList.remove("dragging"));
  element.addEventListener("drop", (event) => {
    if (!isFile(event)) return;
    event.preventDefault();
    element.classList.remove("dragging");
    use(event.dataTransfer.files[0]);
  });
}

/** The GPUs as the options of a select, by where they are sold. */
export function groupGpus(gpus) {
  const label = (gpu) => [gpu.slug, `${gpu.slug} · ${formatBytes(gpu.total_bytes)}`, gpu.name];
  return Object.fromEntries(Object.entries(Object.groupBy(gpus, (gpu) => gpu.segment)).map(([name, some]) => [name, some.map(label)]));
}

function group(models, by) {
  return Object.fromEntries(Object.entries(Object.groupBy(models, by)).map(([name, some]) => [name, some.map((one) => [one.name, one.name, one.source])]));
}

const named = (names, texts) => names.map((name) => [name, texts[name] ?? name]);

function nearest(values, value) {
  let best = 0;
  values.forEach((one, index) => { if (Math.abs(one - value) < Math.abs(values[best] - value)) best = index; });
  return best;
}

function parseConfig(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`config.json: not JSON (${error.message})`);
  }
}
