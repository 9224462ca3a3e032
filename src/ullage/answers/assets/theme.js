// Before the first paint, so that nothing flashes: the saved choice, else the system's.
"use strict";
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let saved = null;
  try { saved = localStorage.getItem("ullage-theme"); } catch { /* storage is off */ }
  const show = () => { document.documentElement.dataset.theme = saved ?? (system.matches ? "dark" : "light"); };
  system.addEventListener("change", show);
  show();

  globalThis.switchTheme = () => {
    saved = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("ullage-theme", saved); } catch { /* not kept */ }
    show();
  };
})();
