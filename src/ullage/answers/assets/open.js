// Unpacks the runs, and shows them.

async function openPage() {
  const texts = [...document.querySelectorAll("script.run")].map((script) => script.textContent);
  const runs = (await Promise.all(texts.map(unpackRun))).map((run) => new Run(run));
  const page = new Page(runs);
  window.ullage = page; // for whoever looks at it from the console
  page.warmUp();
  page.draw(Infinity); // all of it at once, the first time
  document.body.dataset.state = "ready";
  performance.mark("drawn");
}

openPage().catch((error) => {
  document.body.dataset.state = "failed";
  byId("facts").textContent = `This page could not be shown: ${error.message}`;
  throw error;
});
