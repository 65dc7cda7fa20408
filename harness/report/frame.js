"use strict";
// What every page has: a place for problems, charts in the page's colours, swatches, the theme.
const frame = (() => {
  const root = document.documentElement;
  const problems = [];
  const note = (text) => { problems.push(text); root.dataset.problems = problems.join("\n"); };
  window.addEventListener("error", (event) => note(event.message));
  window.addEventListener("unhandledrejection", (event) => note(String(event.reason)));
  document.addEventListener("securitypolicyviolation", (event) => note("blocked: " + event.blockedURI));

  const byId = (id) => document.getElementById(id);
  const make = (tag, text, parent) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  };

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const config = () => ({
    background: "transparent",
    font: "system-ui, sans-serif",
    view: { stroke: colour("--line") },
    axis: {
      labelColor: colour("--soft"), titleColor: colour("--soft"), gridColor: colour("--line"),
      domainColor: colour("--line"), tickColor: colour("--line"), labelFontSize: 11,
      titleFontSize: 11, titleFontWeight: "normal", gridOpacity: 0.6, labelOverlap: "greedy",
      tickCount: 6,
    },
  });
  const draw = (parent, specification, values) => {
    const full = {
      ...specification, $schema: "https://vega.github.io/schema/vega-lite/v6.json",
      width: "container", height: 220, autosize: { type: "fit", contains: "padding" },
      datasets: { cells: values }, config: config(),
    };
    return vegaEmbed(parent, full, { actions: false, renderer: "svg", tooltip: { theme: "custom" } })
      .catch((error) => note(String(error)));
  };
  const drawn = (started) => {
    root.dataset.drawn = document.querySelectorAll(".plot svg, #trade svg").length;
    root.dataset.drawnMs = Math.round(performance.now() - started);
  };

  const swatches = {
    circle: "M-6,0a6,6 0 1,0 12,0a6,6 0 1,0 -12,0", square: "M-5,-5h10v10h-10z", diamond: "M0,-7L6,0L0,7L-6,0z",
    "triangle-up": "M0,-6L6,6H-6z", "triangle-down": "M0,6L6,-6H-6z", cross: "M-2,-7h4v5h5v4h-5v5h-4v-5h-5v-4h5z",
  };
  for (const svg of document.querySelectorAll(".swatch")) {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", swatches[svg.dataset.shape]);
    svg.append(path);
  }

  const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = byId("theme");
  const redraws = [];
  const changed = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    for (const redraw of redraws) redraw();
  };
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; changed(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  changed();

  return { root, byId, make, draw, drawn, note, onTheme: (redraw) => redraws.push(redraw) };
})();
