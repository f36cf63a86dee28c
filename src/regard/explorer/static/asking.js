// Questions whose answers are small are asked once; long ones tell how far they are.

const KEPT = 200;
const PATIENCE = 400; // milliseconds between two looks at how far a question is

export class Asking {
  /** @param {{ask: Function}} source @param {(isAction: boolean) => void} answered hears of each answer that is no error */
  constructor(source, answered = () => {}) {
    this.source = source;
    this.answered = answered;
    this.answers = new Map();
    this.last = 0;
  }

  async ask(name, params, signal) {
    const answer = await this.source.ask(name, params, signal);
    this.answered(false);
    return answer;
  }

  /** The same question gets the same answer; `epoch` changes when a text was run anew. */
  once(epoch, name, params) {
    const key = `${epoch} ${name} ${JSON.stringify(params)}`;
    if (!this.answers.has(key)) {
      const answer = this.ask(name, params);
      this.answers.set(key, answer);
      answer.catch(() => this.answers.delete(key));
      if (this.answers.size > KEPT) this.answers.delete(this.answers.keys().next().value);
    }
    return this.answers.get(key);
  }

  /** A question that takes long: `tell` hears words and a share, or null, until it is answered. */
  async slowly(name, params, tell) {
    this.last += 1;
    const id = `page-${Date.now()}-${this.last}`;
    let isOver = false;
    let isLooking = false;
    const look = async () => {
      if (isLooking) return; // a server that does not answer must not be asked more and more
      isLooking = true;
      try {
        const { values } = await this.source.ask("progress", { id });
        if (values.text && !isOver) tell(values.text, values.share);
      } catch {
        /* the answer itself says what went wrong */
      } finally {
        isLooking = false;
      }
    };
    const timer = setInterval(look, PATIENCE);
    try {
      const answer = await this.source.ask(name, { ...params, progress: id });
      this.answered(true);
      return answer;
    } finally {
      isOver = true;
      clearInterval(timer);
    }
  }
}
