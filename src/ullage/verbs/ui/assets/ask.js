// Questions to the server that this page came from.

/** The answer to a request; throws an Error whose message is fit to be shown. */
export async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer: `ullage ui` has ended. Start it again, and open the address it prints.");
  }
  const isJson = response.headers.get("content-type")?.startsWith("application/json");
  const found = isJson ? await response.json() : { problem: await response.text() };
  if (found.problem) throw new Error(found.problem);
  return found;
}

export const post = (path, body) => ask(path, { method: "POST", body: JSON.stringify(body) });

/** Asks for the newest of what is wanted, one question at a time: what the hand has passed over is
 * never asked, and no answer is older than the one before it. */
export class Latest {
  constructor(request, show) {
    this.request = request;
    this.show = show;
    this.wanted = null;
    this.isAsking = false;
    this.frame = 0;
  }

  /** Wants an answer to this, from the next frame on. */
  want(query) {
    this.wanted = query;
    if (!this.frame && !this.isAsking) this.frame = requestAnimationFrame(() => this._next());
  }

  get isIdle() {
    return !this.frame && !this.isAsking && this.wanted === null;
  }

  async _next() {
    this.frame = 0;
    const query = this.wanted;
    this.wanted = null;
    this.isAsking = true;
    let [answer, problem] = [null, null];
    try {
      answer = await this.request(query);
    } catch (error) {
      problem = error.message;
    }
    this.isAsking = false;
    if (this.wanted !== null) this.want(this.wanted);
    this.show(answer, problem, query);
  }
}
