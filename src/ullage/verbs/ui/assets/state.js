// What the user has set: kept in the address after "#", without what is as it was at first. The
// token is not in it, so the address's end can be shared.

export const DEFAULTS = {
  view: "calculator",
  mode: "train", // or "serve"
  model: "llama-3.2-1b",
  config: "", // of the user's own, as JSON; it goes before the model
  depth: 0, // 0: the model's own
  width: 0,
  batch: 4,
  length: 2048,
  image: 224,
  accumulation: 1,
  precision: "bf16",
  optimizer: "adamw",
  checkpointing: "none",
  attention: "sdpa",
  gradients: "same",
  loss: "", // as the library has it
  compiled: "no",
  library: "transformers",
  torch: "", // the newest that has code for the GPU
  trains: "all",
  adapters: "", // their dtype; as the library has it
  targets: "all-linear",
  rank: 16,
  gpu: "h100-80gb",
  sharding: "alone",
  buckets: "copies",
  data: 8,
  tensor: 1,
  sequence: "no", // whether the tensor ranks divide the sequence, too
  cp: 1,
  ep: 1,
  pipeline: 1,
  micro: 8,
  schedule: "1f1b",
  offload: "no", // of GPU memory: "yes" to the host's, "nvme" to disks
  weights: "bf16",
  kv: "auto",
  context: 8192,
  users: 16,
  tp: 1,
  engine: "vllm",
  beside: "h100-80gb,l4", // the GPUs that are looked at, side by side
};

/** The state that an address holds; what is not one is as at first. */
export function readState(hash) {
  const state = { ...DEFAULTS };
  for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (!(name in DEFAULTS)) continue;
    if (typeof DEFAULTS[name] !== "number") state[name] = text;
    else if (/^\d{1,9}$/.test(text)) state[name] = Number(text);
  }
  return state;
}

/** What the address holds of a state. */
export function writeState(state) {
  const changed = Object.keys(DEFAULTS).filter((name) => state[name] !== DEFAULTS[name]);
  return new URLSearchParams(changed.map((name) => [name, String(state[name])])).toString();
}
