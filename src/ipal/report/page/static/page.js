"use strict";
// Charts, tables and downloads of a report page. Nothing is loaded and nothing is sent.
(() => {
  const root = document.documentElement;
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const coarse = matchMedia("(pointer: coarse)");
  const NARROW = 600; // pixels of a chart, from where legends stand below
  const SHEET = { width: 680, low: 310, high: 720 }; // pixels of a chart on paper: two low ones fit on a sheet
  const TALL = 560; // from this height on a chart has much to show, and stays high

  // ------------------------------------------------------------------ theme

  const themeButton = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosenTheme = null; // by hand; goes before the system's

  function setTheme(name) {
    root.dataset.theme = name;
    nameTheme();
    drawAll();
  }

  function nameTheme() {
    themeButton.textContent = root.dataset.theme === "dark" ? "Light theme" : "Dark theme";
  }

  themeButton.addEventListener("click", () => {
    chosenTheme = root.dataset.theme === "dark" ? "light" : "dark";
    setTheme(chosenTheme);
  });
  system.addEventListener("change", () => chosenTheme || setTheme(system.matches ? "dark" : "light"));

  /** A colour of the theme by its name: "@ink", "@series3/0.2" (with opacity), "@heat" (a scale). */
  function colour(name) {
    const [key, opacity] = name.slice(1).split("/");
    const value = getComputedStyle(root).getPropertyValue(`--${key}`).trim();
    if (value.includes(",")) {
      const steps = value.split(",").map((step) => step.trim().split(" "));
      return steps.map(([step, at], index) => [at ? parseFloat(at) / 100 : index / (steps.length - 1), step]);
    }
    if (!opacity) return value;
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(value.slice(at, at + 2), 16));
    return `rgba(${red}, ${green}, ${blue}, ${opacity})`;
  }

  const COLOURED = new Set(["color", "fillcolor", "colorscale"]);

  /** A copy with the theme's colours in the places of colours; texts of the data are left alone. */
  function coloured(value, key) {
    if (Array.isArray(value)) return value.map((one) => (typeof one === "object" ? coloured(one, key) : one));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, coloured(one, name)]));
    }
    return COLOURED.has(key) && typeof value === "string" && value.startsWith("@") ? colour(value) : value;
  }

  /** `over` put over `base`, section by section. */
  function merged(base, over) {
    const result = { ...base };
    for (const [name, value] of Object.entries(over || {})) {
      const both = [result[name], value].every((one) => one && typeof one === "object" && !Array.isArray(one));
      result[name] = both ? merged(result[name], value) : value;
    }
    return result;
  }

  // ------------------------------------------------------------------ charts

  const plots = new Map(); // figure -> { spec, chosen, isDrawn }

  /** A trace for a narrow window: without a scale beside it, with smaller points. */
  function smaller(trace) {
    const { size } = trace.marker || {};
    if (trace.type === "heatmap") return { ...trace, showscale: false, textfont: { size: 10 } };
    if (trace.mode !== "markers") return trace;
    return { ...trace, marker: { ...trace.marker, size: Array.isArray(size) ? size.map((one) => one * 0.7) : size * 0.7 } };
  }

  function axis(isNarrow) {
    return {
      automargin: true,
      showline: false,
      color: "@muted",
      gridcolor: colour("@line"),
      linecolor: colour("@line"),
      zerolinecolor: colour("@line"),
      title: { standoff: 8, font: { size: 12 } },
      tickfont: { size: isNarrow ? 10 : 12 },
    };
  }

  function figureOf(plot, width) {
    const { spec } = plot;
    const change = spec.changes[plot.chosen] || {};
    const isNarrow = width < NARROW;
    let data = change.data || spec.data || [];
    if (change.visible) data = data.map((trace, index) => ({ ...trace, visible: change.visible[index] }));
    if (isNarrow) data = data.map(smaller);
    const family = getComputedStyle(document.body).fontFamily;
    const layout = [spec.layout, change.layout].reduce(merged, {
      autosize: true,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family, size: 13, color: "@ink" },
      margin: { l: 56, r: 16, t: 24, b: 48 },
      xaxis: axis(isNarrow),
      yaxis: axis(isNarrow),
      ...(spec.layout && spec.layout.yaxis2 ? { yaxis2: axis(isNarrow) } : {}),
      legend: isNarrow
        ? { orientation: "h", y: -0.2, yanchor: "top", x: 0, font: { size: 11 }, maxheight: 0.4 }
        : { x: 1.02, y: 1, font: { size: 12 } },
      hoverlabel: {
        bgcolor: colour("@card"),
        bordercolor: colour("@muted"),
        font: { family, size: 13, color: "@ink" },
        align: "left",
      },
      dragmode: false,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("@muted"), activecolor: colour("@accent") },
    });
    // A finger that scrolls the page must not be caught by a chart.
    if (coarse.matches || isNarrow) layout.dragmode = false;
    const legends = data.filter((trace) => trace.showlegend !== false && trace.type !== "heatmap").length;
    if (isNarrow && legends > 1) layout.height = (layout.height || 360) + Math.min(160, 14 * legends);
    return { data: coloured(data), layout: coloured(layout) };
  }

  const fileName = (key) => `${document.body.dataset.name}-${key}`.replace(/[^\w.-]+/g, "_");

  function draw(figure, isPrinted) {
    const plot = plots.get(figure);
    const place = figure.querySelector(".plot");
    const { data, layout } = figureOf(plot, isPrinted ? SHEET.width : place.clientWidth);
    if (isPrinted) {
      const most = layout.height >= TALL ? SHEET.high : SHEET.low;
      const height = Math.min(layout.height, most);
      Object.assign(layout, { autosize: false, width: SHEET.width, height });
    }
    plot.isDrawn = true;
    plot.isNarrow = place.clientWidth < NARROW;
    const config = {
      responsive: true,
      displaylogo: false,
      showSendToCloud: false,
      showTips: false,
      // Named one by one: Plotly's own list has a button that sends the chart to a server.
      modeBarButtons: [["toImage", saveSvg(figure), "zoom2d", "pan2d", "resetScale2d"]],
      toImageButtonOptions: { format: "png", scale: 2, filename: fileName(figure.dataset.chart) },
    };
    return Plotly.react(place, data, layout, config);
  }

  function saveSvg(figure) {
    return {
      name: "toSvg",
      title: "Download plot as SVG",
      icon: Plotly.Icons.disk,
      click: () => saveImage(figure, "svg"),
    };
  }

  /** An image has a ground of its own: a transparent one would be unreadable elsewhere. */
  async function saveImage(figure, format) {
    const place = figure.querySelector(".plot");
    const { data, layout } = figureOf(plots.get(figure), place.clientWidth);
    const title = figure.querySelector("h3").textContent;
    const image = {
      data,
      layout: { ...layout, paper_bgcolor: colour("@card"), margin: { ...layout.margin, t: 32 } },
    };
    const sizes = { width: Math.max(place.clientWidth, 320), height: layout.height || 360 };
    const filename = fileName(figure.dataset.chart);
    await Plotly.downloadImage(image, { format, filename, ...sizes, scale: format === "png" ? 2 : 1 });
    say(`${title} saved as ${filename}.${format}`);
  }

  /** Draw all charts anew: what can be seen at once, the others one by one, so that the page answers meanwhile. */
  function drawAll() {
    delete root.dataset.drawn;
    for (const [figure, plot] of plots) {
      const { top, bottom } = figure.getBoundingClientRect();
      plot.isDrawn = false;
      if (bottom > 0 && top < innerHeight) draw(figure);
    }
    drawInTurn();
  }

  let turn = 0;

  function drawInTurn() {
    const next = [...plots].find(([, plot]) => !plot.isDrawn);
    if (!next) {
      root.dataset.drawn = "all";
      return;
    }
    draw(next[0]);
    clearTimeout(turn);
    turn = setTimeout(drawInTurn);
  }

  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const spec = charts[figure.dataset.chart];
    plots.set(figure, { spec, chosen: spec.chosen, isDrawn: false });
    const picker = figure.querySelector("select");
    if (picker) {
      picker.value = String(spec.chosen); // a browser may remember what was chosen before a reload
      picker.addEventListener("change", () => {
        plots.get(figure).chosen = Number(picker.value);
        draw(figure);
        showRows(figure);
      });
    }
  }

  let resized = 0;
  addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(() => {
      for (const [figure, plot] of plots) {
        const isNarrow = figure.querySelector(".plot").clientWidth < NARROW;
        if (plot.isDrawn && isNarrow !== plot.isNarrow) draw(figure);
      }
    }, 150);
  });

  // ------------------------------------------------------------------ print

  let themeBefore = null;

  function beforePrint() {
    if (themeBefore) return;
    themeBefore = root.dataset.theme;
    root.dataset.theme = "light";
    for (const figure of plots.keys()) draw(figure, true);
  }

  function afterPrint() {
    if (!themeBefore) return;
    root.dataset.theme = themeBefore;
    themeBefore = null;
    drawAll();
  }

  addEventListener("beforeprint", beforePrint);
  addEventListener("afterprint", afterPrint);
  matchMedia("print").addEventListener("change", (event) => (event.matches ? beforePrint() : afterPrint()));

  // ------------------------------------------------------------------ tables

  const words = new Intl.Collator("en", { numeric: true });

  /** Rows of a long table wait in a template until somebody wants them. */
  function fill(table) {
    const template = table.querySelector("template");
    if (template) template.replaceWith(template.content);
  }

  /** Rows of the choice that the chart shows. */
  function showRows(figure) {
    const { chosen } = plots.get(figure);
    for (const row of figure.querySelectorAll("tr[data-choice]")) row.hidden = Number(row.dataset.choice) !== chosen;
  }

  function valueOf(row, column) {
    const { value } = row.cells[column].dataset;
    return value === undefined ? row.cells[column].textContent : value === "" ? null : Number(value);
  }

  function compare(one, other) {
    if (one === null || other === null) return (one === null) - (other === null);
    return typeof one === "string" || typeof other === "string" ? words.compare(one, other) : one - other;
  }

  function sort(table, column) {
    const heads = [...table.tHead.rows[0].cells];
    const isUp = heads[column].getAttribute("aria-sort") !== "ascending";
    heads.forEach((head, at) => head.setAttribute("aria-sort", at !== column ? "none" : isUp ? "ascending" : "descending"));
    const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row, column), row]);
    // What has no value stays last in both directions.
    rows.sort(([one], [other]) => (one === null || other === null || isUp ? compare(one, other) : compare(other, one)));
    table.tBodies[0].append(...rows.map(([, row]) => row));
    say(`${table.caption.textContent}: sorted by ${heads[column].textContent}, ${isUp ? "ascending" : "descending"}`);
  }

  for (const details of document.querySelectorAll("details.data")) {
    details.addEventListener("toggle", () => {
      fill(details.querySelector("table"));
      showRows(details.closest("figure"));
    });
  }

  for (const table of document.querySelectorAll("table")) {
    table.tHead.addEventListener("click", (event) => {
      const head = event.target.closest("th");
      if (head && event.target.closest("button")) sort(table, head.cellIndex);
    });
  }

  /** What a spreadsheet must not take for a formula begins with an apostrophe. */
  function field(text) {
    const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  }

  function csv(table, choices) {
    const heads = [...table.tHead.rows[0].cells];
    const rows = [...table.tBodies[0].rows];
    const spreads = heads.map((_, at) => rows.some((row) => row.cells[at].dataset.deviation !== undefined));
    const first = choices.length ? [field("shown")] : [];
    const title = heads.flatMap((head, at) => {
      const name = head.textContent;
      return spreads[at] ? [field(name), field(`${name} (standard deviation)`)] : [field(name)];
    });
    const lines = rows.map((row) => {
      const cells = [...row.cells].flatMap((cell, at) => {
        const own = cell.dataset.value === undefined ? field(cell.textContent) : cell.dataset.value;
        return spreads[at] ? [own, cell.dataset.deviation || ""] : [own];
      });
      return [...(choices.length ? [field(choices[Number(row.dataset.choice)])] : []), ...cells];
    });
    return [[...first, ...title], ...lines].map((line) => line.join(",")).join("\r\n") + "\r\n";
  }

  // ------------------------------------------------------------------ downloads

  const status = document.getElementById("said");

  function say(text) {
    status.textContent = text;
  }

  function save(name, type, content) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([content], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    say(`saved as ${name}`);
  }

  function saveCsv(button) {
    const figure = button.closest("figure");
    const table = (figure || button.closest(".table")).querySelector("table");
    fill(table);
    if (figure) showRows(figure);
    const options = table.querySelector("tr[data-choice]") ? [...figure.querySelectorAll("select option")] : [];
    const choices = options.map((option) => option.textContent);
    save(`${fileName(table.dataset.key)}.csv`, "text/csv", csv(table, choices));
  }

  async function copy(button) {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code); // not every browser lets a page from disk copy
      button.textContent = "Selected: press Ctrl+C";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.save === "csv") saveCsv(button);
    else if (button.dataset.save) saveImage(button.closest("figure"), button.dataset.save);
    else if ("copy" in button.dataset) copy(button);
    else if (button.id === "download") {
      save(`${fileName("facts")}.json`, "application/json", document.getElementById("facts").textContent);
    }
  });

  // ------------------------------------------------------------------ where one is on the page

  const links = new Map([...document.querySelectorAll("nav.sections a")].map((link) => [link.hash.slice(1), link]));
  const visible = new Set();
  const watcher = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) visible[isIntersecting ? "add" : "delete"](target.id);
      const current = [...links.keys()].find((id) => visible.has(id));
      for (const [id, link] of links) {
        if (id !== current) link.removeAttribute("aria-current");
        else if (!link.hasAttribute("aria-current")) {
          link.setAttribute("aria-current", "true");
          const list = link.closest("ul");
          list.scrollTo({ left: link.offsetLeft - list.offsetLeft - 16 });
        }
      }
    },
    { rootMargin: "-15% 0px -60% 0px" },
  );
  for (const id of links.keys()) watcher.observe(document.getElementById(id));

  for (const figure of plots.keys()) showRows(figure);
  nameTheme();
  drawAll();
})();
