// Memory snapshots: to this machine's server, and back as pages.

import { ask, post } from "./ask.js";
import { acceptDrops } from "./controls.js";

export function setUpSnapshots() {
  const [form, pages, progress, problem] = ["files", "pages", "files-progress", "files-problem"].map((id) => document.getElementById(id));
  for (const label of form.querySelectorAll(".drop")) {
    acceptDrops(label, (file) => {
      const chosen = new DataTransfer();
      chosen.items.add(file);
      label.querySelector("input").files = chosen.files;
    });
  }
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const files = [...form.querySelectorAll("input")].flatMap((input) => [...input.files]);
    const button = form.querySelector("button");
    button.disabled = true;
    problem.hidden = true;
    try {
      const numbers = [];
      for (const file of files) {
        progress.textContent = `Reading ${file.name} …`;
        const sent = await ask(`/snapshots?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file });
        numbers.push(sent.id);
      }
      progress.textContent = "Making the page …";
      const { page } = await post("/pages", { files: numbers });
      const link = makeElement("a", { href: page, target: "_blank", rel: "noopener" }, `Open ${files.map((file) => file.name).join(" and ")}`);
      pages.prepend(makeElement("li", {}, link));
      progress.textContent = "Done.";
      link.focus();
    } catch (error) {
      progress.textContent = "";
      problem.textContent = error.message;
      problem.hidden = false;
    }
    button.disabled = false;
  });
}
