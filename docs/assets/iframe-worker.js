// A browser starts no worker for a page that was opened from disk. The search then runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.ready = new Promise((resolve) => frame.addEventListener("load", resolve, { once: true }));
      this.inside.document.open();
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside.document.write(`<!doctype html><title>search</title><script src="${url}"></script>`);
      this.inside.document.close();
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
