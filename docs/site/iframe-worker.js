// A page that is opened as a file may start no worker, and the search is one. This does its work in a hidden frame.
// The theme looks for the name IFrameWorker.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inside = frame.contentWindow;
      addEventListener("message", (event) => {
        if (event.source !== this.inside) return;
        const told = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(told);
        if (this.onmessage) this.onmessage(told);
      });
      this.ready = new Promise((done) => {
        const inside = this.inside;
        const text = frame.contentDocument;
        const add = (address) => new Promise((loaded) => {
          const script = text.createElement("script");
          script.src = address;
          script.async = false;
          script.onload = loaded;
          text.body.appendChild(script);
        });
        inside.postMessage = (data) => {
          const told = new MessageEvent("message", { data, source: inside });
          dispatchEvent(told);
        };
        inside.importScripts = (...addresses) => Promise.all(addresses.map(add));
        add(url).then(done);
      });
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  }
  window.IFrameWorker = window.Worker = IFrameWorker;
}
