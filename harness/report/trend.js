"use strict";
// The page works without this script but for its charts and the filter.
(() => {
  const { byId, make, draw } = frame;
  const started = performance.now();
  const report = JSON.parse(byId("data").textContent);
  const hidden = new Set();

  async function drawCharts() {
    const records = report.records.filter((record) => !hidden.has(record.name));
    const lines = byId("lines");
    if (!lines) return;
    lines.replaceChildren();
    const drawn = [draw(byId("together"), report.together, records)];
    for (const id of report.cases) {
      const values = records.filter((record) => record.id === id);
      if (!values.length) continue;
      const chart = make("div", undefined, lines);
      chart.className = "chart";
      make("h4", id, chart);
      const plot = make("div", undefined, chart);
      plot.className = "plot";
      plot.setAttribute("role", "img");
      plot.setAttribute("aria-label", `time by run; ${id}; the table below has the figures`);
      drawn.push(draw(plot, report.lines[id], values));
    }
    const more = report.num_cases - report.cases.length;
    byId("chart-note").textContent =
      "Logarithmic; a large ring marks the first run after a step." +
      (more ? ` ${more} more cases are in the table only.` : "");
    await Promise.all(drawn);
  }

  for (const box of document.querySelectorAll("[data-name]")) {
    box.addEventListener("change", () => {
      if (box.checked) hidden.delete(box.dataset.name);
      else hidden.add(box.dataset.name);
      drawCharts();
    });
  }
  frame.onTheme(drawCharts);
  drawCharts().then(() => frame.drawn(started));
})();
