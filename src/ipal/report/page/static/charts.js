"use strict";
// Draws charts as SVG: lines and heat maps. All looks are attributes, so that a drawing can be saved as it is.
// Specs are made by plots.py.
const Charts = (() => {
  const TEXT = 12; // pixels of a letter
  const CELL = 38; // pixels that a number in a heat map needs
  const LINE = 24; // pixels of a line of the legend
  const NARROW = 600; // pixels of a chart, below which names are cut earlier

  // ------------------------------------------------------------------ numbers and colours

  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });
  const plain = (value) => (Math.abs(value) >= 10_000 ? compact.format(value) : String(Number(value.toPrecision(10))));
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1).trimEnd()}…` : text);

  /** A template with the values of a point; in one pass, so that values are never read as templates. */
  function told(template, values) {
    return template.replace(/\{(\w+)(?::\.(\d)([fg]))?\}/g, (_, name, digits, kind) => {
      const value = values[name] ?? "";
      if (typeof value !== "number") return value;
      return kind === "f" ? value.toFixed(digits) : kind === "g" ? Number(value.toPrecision(digits)) : plain(value);
    });
  }

  const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

  /** Black or white, whichever is further from a ground: at least 4.58 to 1. */
  function inkOn(ground) {
    const parts = channels(ground).map((part) => part / 255);
    const [red, green, blue] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
  }

  /** The colour at a share of a scale, which is a list of [share, colour]. */
  function between(scale, share) {
    const at = Math.min(Math.max(share, 0), 1);
    const next = Math.max(1, scale.findIndex(([place]) => place >= at));
    const [[low, from], [high, to]] = [scale[next - 1], scale[next]];
    const part = (at - low) / (high - low);
    const mixed = channels(from).map((one, at) => Math.round(one + (channels(to)[at] - one) * part));
    return `#${mixed.map((one) => one.toString(16).padStart(2, "0")).join("")}`;
  }

  // ------------------------------------------------------------------ pieces of SVG

  const pen = document.createElement("canvas").getContext("2d"); // measures texts

  function add(parent, name, attributes, text) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  }

  const ring = (corners, turn = 0, inner = 1) =>
    Array.from({ length: corners }, (_, at) => {
      const [angle, far] = [(2 * Math.PI * at) / corners + turn, at % 2 ? inner : 1];
      return [far * Math.sin(angle), -far * Math.cos(angle)];
    });
  const SHAPES = {
    circle: ring(24),
    square: ring(4, Math.PI / 4),
    diamond: ring(4),
    triangle: ring(3),
    pentagon: ring(5),
    hexagon: ring(6),
    star: ring(10, 0, 0.45),
    cross: [[-0.3, -1], [0.3, -1], [0.3, -0.3], [1, -0.3], [1, 0.3], [0.3, 0.3], [0.3, 1], [-0.3, 1], [-0.3, 0.3], [-1, 0.3],
      [-1, -0.3], [-0.3, -0.3]],
  };

  const path = (points) => points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

  function sign(parent, trace, x, y, attributes) {
    const far = trace.size / 2 + 0.5;
    const corners = (SHAPES[trace.symbol] || SHAPES.square).map(([right, down]) => [x + far * right, y + far * down]);
    add(parent, "path", { d: `${path(corners)}Z`, ...attributes });
  }

  // ------------------------------------------------------------------ axes

  function bounds(axis, values) {
    const known = values.filter((value) => value !== null);
    let low = known.reduce((one, other) => Math.min(one, other), axis.low ?? Infinity);
    let high = axis.high ?? known.reduce((one, other) => Math.max(one, other), -Infinity);
    if (low === Infinity) [low, high] = [0, 1];
    if (!(high > low)) high = low + (Math.abs(low) || 1);
    const room = (high - low) * 0.05;
    return [axis.low ?? low - room, axis.high ?? high + room];
  }

  function ticksOf(low, high, most) {
    const raw = (high - low) / most;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, at) => (first + at) * step);
  }

  /** From values to pixels: where they are, the ticks, how long a unit is. */
  function scaleOf(axis, values, from, to) {
    if (axis.names) {
      const step = (to - from) / axis.names.length;
      const places = new Map(axis.names.map((name, at) => [name, from + (at + 0.5) * step]));
      const every = Math.ceil(14 / Math.abs(step)); // names that would lie upon each other are left out
      const ticks = [...places].filter((_, at) => at % every === 0).map(([name, at]) => [at, name]);
      return { at: (value) => places.get(value), ticks, unit: Math.abs(step) };
    }
    const [low, high] = bounds(axis, values);
    const unit = (to - from) / (high - low);
    const at = (value) => (value === null ? undefined : from + (value - low) * unit);
    const found = ticksOf(low, high, Math.max(2, Math.min(7, Math.abs(to - from) / 55)));
    return { at, ticks: found.map((value) => [at(value), plain(value) + (axis.suffix || "")]) };
  }

  /** What an axis must reach, bands included. */
  const reached = (traces) => traces.flatMap((trace) => [...trace.y, ...(trace.low || []), ...(trace.high || [])]);

  // ------------------------------------------------------------------ one drawing

  class Drawing {
    /** `look`: width, colour(name), family, title, hidden (names), toggle(name, isAlone). */
    constructor(spec, look) {
      Object.assign(this, { spec, look, colour: look.colour, spots: [] });
      pen.font = `${TEXT}px ${look.family}`;
      this.traces = spec.traces.filter((trace) => !look.hidden.has(trace.name));
      this.first = spec.traces[0] || {};
      const about = { role: "group", "aria-label": `${look.title}: drawing. Its numbers are in the table below it.` };
      this.svg = add(document.createDocumentFragment(), "svg", { ...about, "font-family": look.family, "font-size": TEXT });
      this.layer = add(this.svg, "g", { "aria-hidden": "true" });
      this.arrange();
      this.paint();
      const height = this.first.kind === "heat" ? this.colourLegend(this.height) : this.legend(this.height);
      for (const [name, value] of Object.entries({ viewBox: `0 0 ${this.width} ${height}`, width: this.width, height })) {
        this.svg.setAttribute(name, value);
      }
    }

    wide = (words) => pen.measureText(words).width;

    text(x, y, words, more = {}) {
      return add(this.layer, "text", { x, y, fill: this.colour("@muted"), ...more }, words);
    }

    rule(x1, y1, x2, y2, more = {}) {
      add(this.layer, "line", { x1, y1, x2, y2, stroke: this.colour("@line"), ...more });
    }

    /** Margins, from the texts at the axes; a heat map of numbers is as wide as they need. */
    arrange() {
      const { spec, look } = this;
      const [beside, below] = look.width < NARROW ? [14, 12] : [26, 18];
      const named = (axis, most) => ({ ...axis, shown: new Map((axis.names || []).map((name) => [name, cut(name, most)])) });
      const widest = (axis) => Math.max(0, ...[...axis.shown.values()].map((words) => this.wide(words)));
      this.down = named(spec.y, beside);
      this.across = named(spec.x, below);
      this.left = (spec.y.names ? widest(this.down) : 44) + 38;
      const { digits = null } = this.first;
      const least = digits === null ? 260 : this.left + 20 + CELL * spec.x.names.length;
      this.width = Math.max(look.width, least);
      this.right = this.width - 20;
      const longest = widest(this.across);
      const step = spec.x.names ? (this.right - this.left) / spec.x.names.length : Infinity;
      this.isTurned = longest + 8 > step;
      if (this.isTurned) this.left = Math.max(this.left, 0.71 * longest - step / 2 + 10);
      const ticks = this.isTurned ? 0.71 * longest + 20 : 22;
      this.height = spec.height;
      this.bottom = this.height - ticks - 24;
      this.top = spec.borders ? 28 : 14;
    }

    paint() {
      const { spec, traces, left, right, top, bottom } = this;
      const x = scaleOf(spec.x, traces.flatMap((trace) => trace.x || []), left, right);
      const y = spec.y.names ? scaleOf(spec.y, [], top, bottom) : scaleOf(spec.y, reached(traces), bottom, top);
      this.besides(y);
      this.beneath(x);
      for (const [at, name] of spec.borders || []) this.border(x.at(at), name);
      for (const trace of traces) if (trace.low) this.band(trace, x, y);
      for (const trace of traces) this[trace.kind](trace, x, y);
    }

    besides(y) {
      for (const [at, words] of y.ticks) {
        if (!this.down.names) this.rule(this.left, at, this.right, at);
        this.text(this.left - 8, at + 4, this.down.shown.get(words) ?? words, { "text-anchor": "end" });
      }
      const middle = (this.top + this.bottom) / 2;
      const turned = { "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` };
      this.text(12, middle + 4, cut(this.down.title, Math.floor((this.bottom - this.top) / 7)), turned);
    }

    beneath(x) {
      const y = this.bottom + 18;
      for (const [at, words] of x.ticks) {
        const turned = { "text-anchor": "end", transform: `rotate(-45 ${at + 4} ${y - 4})` };
        const look = this.isTurned ? turned : { "text-anchor": "middle" };
        this.text(this.isTurned ? at + 4 : at, this.isTurned ? y - 4 : y, this.across.shown.get(words) ?? words, look);
      }
      const middle = (this.left + this.right) / 2;
      this.text(middle, this.height - 10, this.across.title, { "text-anchor": "middle" });
    }

    border(x, name) {
      if (x > this.left + 1) this.rule(x, this.top, x, this.bottom, { stroke: this.colour("@muted"), "stroke-dasharray": "2 3" });
      const [from, to] = [Math.max(x, this.left), this.named || -Infinity];
      if (from < to || from + this.wide(name) > this.width) return;
      this.text(from + 2, this.top - 10, name);
      this.named = from + this.wide(name) + 8; // a name that would lie upon it is left out
    }

    /** Something under the pointer: around a point, or in a box. */
    spot(trace, x, y, values, box = {}) {
      this.spots.push({ x, y, ...box, words: () => told(trace.hover, { name: trace.name, ...values }) });
    }

    band(trace, x, y) {
      const ends = (name) => trace.x.map((value, at) => [x.at(value), y.at(trace[name][at])]);
      const d = `${path([...ends("high"), ...ends("low").reverse()])}Z`;
      add(this.layer, "path", { d, fill: this.colour(trace.colour), "fill-opacity": 0.14 });
    }

    line(trace, x, y) {
      const tint = this.colour(trace.colour);
      let run = [];
      const end = () => {
        const look = { fill: "none", stroke: tint, "stroke-width": trace.width, "stroke-dasharray": trace.dash || "none" };
        if (run.length > 1) add(this.layer, "path", { d: path(run), "stroke-linejoin": "round", ...look });
        run = [];
      };
      trace.x.forEach((value, at) => {
        const [across, up] = [x.at(value), y.at(trace.y[at])];
        if (up === undefined) return end(); // a gap
        run.push([across, up]);
        if (trace.markers) sign(this.layer, trace, across, up, { fill: tint });
        this.spot(trace, across, up, { x: value, y: trace.y[at] });
      });
      end();
    }

    heat(trace, x, y) {
      const scale = this.colour(`@${trace.scale}`);
      const [w, h] = [x.unit, y.unit];
      const gap = trace.digits === null ? 0 : 2;
      trace.z.forEach((row, down) => {
        row.forEach((value, across) => {
          if (value === null) return;
          const [left, top] = [this.left + across * w, this.top + down * h];
          const fill = between(scale, (value - trace.lowest) / (trace.highest - trace.lowest || 1));
          add(this.layer, "rect", { x: left, y: top, width: w - gap, height: h - gap, fill });
          const about = trace.about?.[down]?.[across];
          this.spot(trace, left, top, { x: this.spec.x.names[across], y: this.spec.y.names[down], z: value, about }, { w, h });
          if (trace.digits === null) return;
          const ink = { "text-anchor": "middle", fill: inkOn(fill), "data-on": fill };
          this.text(left + w / 2 - 1, top + h / 2 + 4, value.toFixed(trace.digits), ink);
        });
      });
    }

    /** The colours of a heat map, from the lowest to the highest value. */
    colourLegend(y) {
      const { scale, lowest, highest, suffix } = this.first;
      const [low, high] = [lowest, highest].map((end) => plain(Number(end.toPrecision(3))) + suffix);
      const left = Math.max(8, Math.min(this.left, this.width - 180 - this.wide(low + high)));
      const from = left + this.wide(low) + 8;
      const id = `scale-${scale}-${this.look.key}`;
      const gradient = add(add(this.layer, "defs", {}), "linearGradient", { id });
      for (const [at, tint] of this.colour(`@${scale}`)) add(gradient, "stop", { offset: at, "stop-color": tint });
      this.text(left, y + 12, low);
      add(this.layer, "rect", { x: from, y: y + 2, width: 120, height: 12, fill: `url(#${id})`, stroke: this.colour("@line") });
      this.text(from + 128, y + 12, high);
      return y + 24;
    }

    /** Names that hide what they name, in as many lines as they need. */
    legend(y) {
      const entries = new Map();
      for (const trace of this.spec.traces) if (!entries.has(trace.name)) entries.set(trace.name, trace);
      if (entries.size < 2) return y;
      let [x, top] = [8, y];
      for (const [name, trace] of entries) {
        const words = cut(name, 44);
        const width = 34 + this.wide(words) + 10;
        if (x > 8 && x + width > this.width) [x, top] = [8, top + LINE];
        const isHidden = this.look.hidden.has(name);
        const button = { role: "button", tabindex: 0, "aria-pressed": String(!isHidden), "data-name": name, cursor: "pointer" };
        const entry = add(this.svg, "g", button);
        add(entry, "rect", { x, y: top, width: width - 6, height: LINE - 2, fill: "none", "pointer-events": "all" });
        const tint = isHidden ? this.colour("@line") : this.colour(trace.colour);
        const dash = { stroke: tint, "stroke-width": trace.width, "stroke-dasharray": trace.dash || "none" };
        const middle = top + 11;
        add(entry, "line", { x1: x + 3, y1: middle, x2: x + 27, y2: middle, ...dash });
        if (trace.markers) sign(entry, trace, x + 15, middle, { fill: tint });
        const ink = this.colour(isHidden ? "@muted" : "@ink");
        const struck = isHidden ? { "text-decoration": "line-through" } : {};
        add(entry, "text", { x: x + 32, y: middle + 4, fill: ink, ...struck }, words);
        entry.addEventListener("click", () => this.look.toggle(name, false));
        entry.addEventListener("dblclick", () => this.look.toggle(name, true));
        entry.addEventListener("keydown", (event) => {
          if (event.key !== "Enter" && event.key !== " ") return;
          event.preventDefault();
          this.look.toggle(name, event.shiftKey);
        });
        x += width;
      }
      return top + LINE + 4;
    }

    /** What is said of the place under the pointer. */
    wordsAt(x, y) {
      const far = (spot) => {
        if (spot.w === undefined) return Math.hypot(spot.x - x, this.spec.together ? 0 : spot.y - y);
        return x >= spot.x && x < spot.x + spot.w && y >= spot.y && y < spot.y + spot.h ? 0 : Infinity;
      };
      const nearest = this.spots.reduce((best, spot) => (far(spot) < best.far ? { far: far(spot), spot } : best), { far: 40 });
      if (!nearest.spot) return "";
      const same = this.spec.together ? this.spots.filter((spot) => spot.x === nearest.spot.x) : [nearest.spot];
      return same.map((spot) => spot.words()).join("\n");
    }
  }

  // ------------------------------------------------------------------ the numbers of a chart

  /** As columns and rows: of a heat map one row a cell, else one a point, with the name of its series. */
  function numbers({ traces, x, y }) {
    const [first = {}] = traces;
    if (first.kind === "heat") {
      const columns = [y.title, x.title, first.value_title, ...(first.about_title ? [first.about_title] : [])];
      const cell = (down, across) => [first.z[down][across], ...(first.about_title ? [first.about[down][across]] : [])];
      const places = y.names.flatMap((row, down) => x.names.map((column, across) => [row, column, ...cell(down, across)]));
      return { columns, rows: places.filter(([, , value]) => value !== null) };
    }
    const isBand = traces.some((trace) => trace.low);
    const columns = ["name", x.title, y.title];
    const rows = traces.flatMap((trace) =>
      trace.x.map((value, at) => {
        const band = isBand ? [trace.low?.[at] ?? "", trace.high?.[at] ?? ""] : [];
        return [trace.name, value, trace.y[at] ?? "–", ...band];
      }),
    );
    return { columns: [...columns, ...(isBand ? ["low", "high"] : [])], rows };
  }

  return { Drawing, numbers };
})();
