"use strict";
// The page works without this script but for charts, filters and the table of all cells.
(() => {
  const { root, byId, make, draw, note } = frame;
  const started = performance.now();
  const report = JSON.parse(byId("data").textContent);
  const state = { hidden: new Set(), axes: {}, keys: null, measure: "time", sort: null, down: false };

  const fits = (record) =>
    !state.hidden.has(record.name) &&
    Object.entries(state.axes).every(([axis, value]) => value === "" || record.axes[axis] === value);
  const shown = () => report.records.filter(fits);

  // Charts
  const measureField = { time: "t", ratio: "r", memory: "m", error: "e", ceiling: "c" };
  async function drawCharts() {
    const records = shown().filter((record) => record.status === "ok");
    const lines = byId("lines");
    const facets = report.facets.filter((facet) => records.some((record) => record.facet === facet));
    const field = measureField[state.measure];
    lines.replaceChildren();
    const drawn = [];
    let without = 0;
    for (const facet of facets) {
      const values = records.filter((r) => r.facet === facet && r[field] != null);
      if (!values.length) { without += 1; continue; }
      const chart = make("div", undefined, lines);
      chart.className = "chart";
      if (facet) make("h4", facet, chart);
      const plot = make("div", undefined, chart);
      plot.className = "plot";
      plot.setAttribute("role", "img");
      plot.setAttribute("aria-label", `${state.measure} by implementation; ${facet || "all cases"}; the table below has the figures`);
      drawn.push(draw(plot, report.lines[state.measure], values));
    }
    const notes = [];
    if (report.num_facets > report.facets.length) notes.push(`${report.num_facets - report.facets.length} more groups are in the table only.`);
    if (!facets.length) notes.push("No measured case fits the filters.");
    else if (without === facets.length) notes.push("This was not measured in these cases.");
    notes.push({ time: "Both axes are logarithmic; bars are 95 % intervals.", ratio: "Below 1: quicker than the reference. Bars are 95 % intervals.", memory: "Allocator peak of one call above its inputs.", error: "Largest |error| / (P|V|) against float64, output and gradients.", ceiling: "1 = as fast as this machine's measured matrix product or memory allows." }[state.measure]);
    byId("chart-note").textContent = notes.join(" ");
    const trade = byId("trade");
    const points = records.filter((r) => r.m != null);
    if (points.length) drawn.push(draw(trade, report.trade, points));
    else trade.textContent = "Memory was not measured in these cases.";
    await Promise.all(drawn);
  }

  // The table of all cells
  const columns = [
    ...report.axes.map(([axis, label]) => ({ label, get: (r) => r.axes[axis], number: (r) => Number(r.axes[axis]) })),
    { label: "implementation", get: (r) => r.name, left: true },
    { label: "time", get: (r) => r.time, number: (r) => r.t },
    { label: "time / reference", get: (r) => r.ratio || "", number: (r) => r.r },
    { label: "verdict", get: (r) => r.verdict, left: true },
    { label: "best set", get: (r) => (r.best ? "yes" : "") },
    { label: "extra memory", get: (r) => r.memory || "", number: (r) => r.m },
    { label: "error", get: (r) => r.error || "", number: (r) => r.e },
    { label: "of ceiling", get: (r) => r.ceiling || "", number: (r) => r.c },
    { label: "kernel", get: (r) => r.kernel || "", left: true },
    ...(report.records.some((r) => r.form) ? [{ label: "mask as", get: (r) => r.form || "", left: true }] : []),
    { label: "why", get: (r) => r.why || "", left: true, why: true },
    { label: "case", get: (r) => r.key, left: true },
    { label: "repeat with", get: (r) => r.repro, left: true, repro: true },
  ];
  const order = (a, b) => {
    const column = columns[state.sort];
    const sign = state.down ? -1 : 1;
    if (!column.number) return sign * String(column.get(a)).localeCompare(String(column.get(b)));
    const [one, other] = [column.number(a) ?? NaN, column.number(b) ?? NaN];
    if (Number.isNaN(one) && Number.isNaN(other)) return sign * String(column.get(a)).localeCompare(String(column.get(b)));
    if (Number.isNaN(one) || Number.isNaN(other)) return Number.isNaN(one) ? 1 : -1; // the missing last
    return sign * (one - other);
  };
  function visible() {
    const records = shown().filter((r) => !state.keys || state.keys.has(r.key));
    return state.sort === null ? records : [...records].sort(order);
  }
  function fillHead() {
    const head = byId("data-table").tHead.rows[0];
    columns.forEach((column, index) => {
      const cell = make("th", undefined, head);
      cell.scope = "col";
      if (column.left) cell.className = "label";
      if (column.repro) cell.classList.add("repro");
      const button = make("button", column.label, cell);
      button.type = "button";
      button.addEventListener("click", () => {
        state.down = state.sort === index ? !state.down : false;
        state.sort = index;
        for (const other of head.cells) other.removeAttribute("aria-sort");
        cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
        fillTable();
      });
    });
  }
  function fillTable() {
    const body = document.createDocumentFragment();
    const records = visible();
    for (const record of records) {
      const line = make("tr", undefined, body);
      for (const column of columns) {
        const cell = make("td", undefined, line);
        if (column.left) cell.className = "label";
        if (column.why && column.get(record)) cell.classList.add("why");
        if (column.repro) { cell.classList.add("repro"); make("code", column.get(record), cell); }
        else cell.textContent = column.get(record);
      }
      if (record.best) line.cells[report.axes.length].classList.add("best");
    }
    byId("data-table").tBodies[0].replaceChildren(body);
    byId("count").textContent = `${records.length} of ${report.records.length} cells.`;
    byId("reset").hidden = !state.keys;
  }
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  function download() {
    const raw = ["t", "t_low", "t_high", "r", "r_low", "r_high", "m", "e", "c", "share", "p95", "first", "flops"];
    const names = ["time_s", "time_low_s", "time_high_s", "ratio", "ratio_low", "ratio_high", "extra_memory_bytes", "error_u", "ceiling_share", "bound_share", "p95_s", "first_call_s", "flop_per_s"];
    const head = ["case_key", "case", ...report.axes.map(([axis]) => axis), "implementation", "status", "verdict", "best_set", ...names, "why", "repeat_with"];
    const lines = visible().map((r) => [
      r.key, r.id, ...report.axes.map(([axis]) => r.axes[axis]), r.name, r.status, r.verdict, String(r.best),
      ...raw.map((field) => (r[field] == null ? "" : String(r[field]))), r.why || "", r.repro,
    ]);
    const text = [head, ...lines].map((line) => line.map(quoted).join(",")).join("\n") + "\n";
    const link = make("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = "mha-bench.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // Controls
  const refresh = () => { fillTable(); return drawCharts(); };
  for (const box of document.querySelectorAll("[data-name]")) {
    box.addEventListener("change", () => {
      if (box.checked) state.hidden.delete(box.dataset.name);
      else state.hidden.add(box.dataset.name);
      refresh();
    });
  }
  for (const [axis, label] of report.axes) {
    const values = [...new Set(report.records.map((record) => record.axes[axis]))];
    const holder = make("label", label + " ", byId("axes"));
    const select = make("select", undefined, holder);
    make("option", "all", select).value = "";
    for (const value of values) make("option", value, select).value = value;
    select.addEventListener("change", () => { state.axes[axis] = select.value; refresh(); });
  }
  if (!report.axes.length) byId("axes").hidden = true;
  for (const button of document.querySelectorAll("[data-measure]")) {
    button.addEventListener("click", () => {
      state.measure = button.dataset.measure;
      for (const other of document.querySelectorAll("[data-measure]")) other.setAttribute("aria-pressed", String(other === button));
      drawCharts();
    });
  }
  for (const link of document.querySelectorAll("[data-keys]")) {
    link.addEventListener("click", () => { state.keys = new Set(link.dataset.keys.split(" ")); fillTable(); });
  }
  byId("reset").addEventListener("click", () => { state.keys = null; fillTable(); });
  byId("download").addEventListener("click", download);
  frame.onTheme(() => drawCharts());
  window.addEventListener("beforeprint", () => { for (const d of document.querySelectorAll("details")) d.open = true; });

  fillHead();
  fillTable();
  drawCharts().then(() => {
    frame.drawn(started);
  });
})();
