"use strict";
// Charts, tables and downloads of a report page. Nothing is loaded and nothing is sent.
(async () => {
  const root = document.documentElement;
  const bytes = Uint8Array.from(atob(document.getElementById("packed").textContent), (sign) => sign.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const charts = await new Response(unpacked).json();
  const SHEET = 680; // pixels of a chart on paper

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

  /** A colour of the theme by its name: "@ink", or of a scale as "@heat" a list of [share, colour]. */
  function colour(name) {
    const value = getComputedStyle(root).getPropertyValue(`--${name.slice(1)}`).trim();
    if (!value.includes(",")) return value;
    const steps = value.split(",").map((step) => step.trim().split(" "));
    return steps.map(([step, at], index) => [at ? parseFloat(at) / 100 : index / (steps.length - 1), step]);
  }

  // ------------------------------------------------------------------ charts

  const plots = new Map(); // figure -> { spec, chosen, hidden, drawing }

  /** A chart as the picker says. */
  const shown = ({ spec, chosen }) => ({ ...spec, ...spec.changes[chosen] });

  const fileName = (key) => `${document.body.dataset.name}-${key}`.replace(/[^\w.-]+/g, "_");

  function draw(figure, width) {
    const plot = plots.get(figure);
    const place = figure.querySelector(".plot");
    const focused = place.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    plot.width = place.clientWidth;
    plot.drawing = new Charts.Drawing(shown(plot), {
      width: width || plot.width,
      colour,
      family: getComputedStyle(document.body).fontFamily.replaceAll('"', "'"),
      title: figure.querySelector("h3").textContent,
      key: figure.dataset.chart,
      hidden: plot.hidden,
      toggle: (name, isAlone) => toggle(figure, name, isAlone),
    });
    place.replaceChildren(plot.drawing.svg);
    if (focused) [...place.querySelectorAll("[data-name]")].find((one) => one.dataset.name === focused)?.focus();
    showEdges(place);
  }

  /** Hide or show what a legend names, or show it alone. */
  function toggle(figure, name, isAlone) {
    const plot = plots.get(figure);
    if (isAlone) plot.hidden = new Set(shown(plot).traces.map((trace) => trace.name).filter((one) => one !== name));
    else if (!plot.hidden.delete(name)) plot.hidden.add(name);
    draw(figure);
  }

  const tip = document.getElementById("tip");

  /** The words of what is under the pointer, beside it. */
  function tell(figure, event) {
    const { drawing } = plots.get(figure);
    const box = drawing.svg.getBoundingClientRect();
    tip.textContent = drawing.wordsAt(event.clientX - box.left, event.clientY - box.top);
    tip.hidden = !tip.textContent;
    const { width, height } = tip.getBoundingClientRect();
    const [x, y] = [event.clientX + 14, event.clientY + 14];
    tip.style.left = `${Math.max(4, Math.min(x, root.clientWidth - width - 4))}px`;
    tip.style.top = `${y + height > innerHeight ? event.clientY - height - 10 : y}px`;
  }

  /** An image has a ground of its own: a transparent one would be unreadable elsewhere. */
  async function saveImage(figure, format) {
    const image = plots.get(figure).drawing.svg.cloneNode(true);
    const [width, height] = ["width", "height"].map((name) => Number(image.getAttribute(name)));
    const ground = document.createElementNS(image.namespaceURI, "rect");
    for (const [name, value] of Object.entries({ width, height, fill: colour("@card") })) ground.setAttribute(name, value);
    image.prepend(ground);
    const text = new XMLSerializer().serializeToString(image);
    const name = `${fileName(figure.dataset.chart)}.${format}`;
    if (format === "svg") return save(name, "image/svg+xml", text);
    const picture = new Image();
    picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    await picture.decode();
    const canvas = Object.assign(document.createElement("canvas"), { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((content) => save(name, "image/png", content));
  }

  function drawAll() {
    for (const figure of plots.keys()) draw(figure);
    root.dataset.drawn = "all";
  }

  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const spec = charts[figure.dataset.chart];
    const choose = (chosen) => plots.set(figure, { spec, chosen, hidden: new Set() });
    choose(spec.changes.length - 1);
    const place = figure.querySelector(".plot");
    for (const kind of ["pointermove", "pointerdown"]) place.addEventListener(kind, (event) => tell(figure, event));
    place.addEventListener("pointerleave", () => (tip.hidden = true));
    const picker = figure.querySelector("select");
    if (!picker) continue;
    picker.value = String(spec.changes.length - 1); // a browser may remember what was chosen before a reload
    picker.addEventListener("change", () => {
      choose(Number(picker.value));
      draw(figure);
      tabulate(figure);
    });
  }

  let resized = 0;
  addEventListener("scroll", () => (tip.hidden = true), { passive: true });
  addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(() => {
      for (const [figure, plot] of plots) if (plot.width !== figure.querySelector(".plot").clientWidth) draw(figure);
      document.querySelectorAll(".scroll").forEach(showEdges);
    }, 150);
  });

  // ------------------------------------------------------------------ what is larger than its box

  /** Marks the sides on which a box goes on: its edge has a shadow there, and a hint stands below. */
  function showEdges(box) {
    const [across, down] = [box.scrollWidth - box.clientWidth, box.scrollHeight - box.clientHeight];
    const sides = { before: box.scrollLeft > 1, after: box.scrollLeft < across - 1, above: box.scrollTop > 1 };
    Object.assign(sides, { below: box.scrollTop < down - 1, large: across > 1 || down > 1 });
    for (const [name, isSo] of Object.entries(sides)) box.classList.toggle(name, isSo);
  }

  for (const box of document.querySelectorAll(".scroll")) {
    box.addEventListener("scroll", () => showEdges(box), { passive: true });
    new ResizeObserver(() => showEdges(box)).observe(box);
  }

  // ------------------------------------------------------------------ print

  let themeBefore = null;

  function beforePrint() {
    if (themeBefore) return;
    themeBefore = root.dataset.theme;
    root.dataset.theme = "light";
    for (const figure of plots.keys()) draw(figure, SHEET);
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

  /** The table of a chart's numbers, made when somebody opens it. */
  function tabulate(figure) {
    if (!figure.querySelector("details").open) return;
    const table = figure.querySelector("table");
    const { columns, rows } = Charts.numbers(shown(plots.get(figure)));
    const digits = columns.map((_, at) => {
      const numbers = rows.map((row) => row[at]).filter((value) => typeof value === "number");
      return numbers.every(Number.isInteger) ? 0 : numbers.some((value) => Math.abs(value) >= 10) ? 2 : 4;
    });
    const heads = columns.map((name, at) => {
      const head = Object.assign(document.createElement("th"), { scope: "col", ariaSort: "none" });
      if (typeof rows[0]?.[at] === "number") head.className = "number";
      head.append(Object.assign(document.createElement("button"), { type: "button", textContent: name }));
      return head;
    });
    const lines = rows.map((values) => {
      const line = document.createElement("tr");
      values.forEach((value, at) => {
        const cell = line.insertCell();
        const isNumber = typeof value === "number";
        Object.assign(cell, { textContent: isNumber ? value.toFixed(digits[at]) : value, className: isNumber ? "number" : "" });
        if (isNumber) cell.dataset.value = value;
      });
      return line;
    });
    table.tHead.rows[0].replaceChildren(...heads);
    table.tBodies[0].replaceChildren(...lines);
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

  for (const figure of plots.keys()) figure.querySelector("details").addEventListener("toggle", () => tabulate(figure));

  /** What a spreadsheet must not take for a formula begins with an apostrophe. */
  function field(text) {
    const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  }

  function csv(table) {
    const heads = [...table.tHead.rows[0].cells];
    const rows = [...table.tBodies[0].rows];
    const spreads = heads.map((_, at) => rows.some((row) => row.cells[at].dataset.deviation !== undefined));
    const title = heads.flatMap((head, at) => {
      const name = head.textContent;
      return spreads[at] ? [field(name), field(`${name} (standard deviation)`)] : [field(name)];
    });
    const lines = rows.map((row) =>
      [...row.cells].flatMap((cell, at) => {
        const own = cell.dataset.value === undefined ? field(cell.textContent) : cell.dataset.value;
        return spreads[at] ? [own, cell.dataset.deviation || ""] : [own];
      }),
    );
    return [title, ...lines].map((line) => line.join(",")).join("\r\n") + "\r\n";
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
    if (figure) figure.querySelector("details").open = true;
    if (figure) tabulate(figure);
    const table = button.closest(".card").querySelector("table");
    save(`${fileName(table.dataset.key)}.csv`, "text/csv", csv(table));
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
    if (button.closest("th")) sort(button.closest("table"), button.closest("th").cellIndex);
    else if (button.dataset.save === "csv") saveCsv(button);
    else if (button.dataset.save) saveImage(button.closest("figure"), button.dataset.save);
    else if ("copy" in button.dataset) copy(button);
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

  nameTheme();
  drawAll();
})();
