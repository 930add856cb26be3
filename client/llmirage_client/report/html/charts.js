// Draws the charts of a page with uPlot, from their data-chart, and shows the values under the pointer. Where it does not run,
// each chart has the table of its values.
var tooltip = (function () {
  "use strict";
  var tip = document.createElement("div");
  tip.id = "tip";
  document.body.appendChild(tip);
  function hide() { tip.style.display = "none"; }
  document.addEventListener("scroll", hide, true);

  // Beside a point of the window, within it.
  function show(said, left, top) {
    tip.textContent = said;
    tip.style.display = "block";
    var x = left + 14, y = top + 16;
    if (x + tip.offsetWidth > innerWidth - 6) { x = Math.max(6, left - tip.offsetWidth - 10); }
    if (y + tip.offsetHeight > innerHeight - 6) { y = Math.max(6, top - tip.offsetHeight - 12); }
    tip.style.left = x + "px";
    tip.style.top = y + "px";
  }
  return { show: show, hide: hide };
})();

(function () {
  "use strict";
  var FONT = "12px " + getComputedStyle(document.body).fontFamily, WHOLE = [], NEAR = 14, ROW = 14, LABEL = 170;
  for (var power = 1; power < 1e12; power *= 10) { WHOLE.push(power, 2 * power, 5 * power); }
  var pen = document.createElement("canvas").getContext("2d"), style = getComputedStyle(document.documentElement);

  function css(name) { return style.getPropertyValue("--" + name); }
  function ink(series) { return css(series.color ? "c" + series.color : "text"); }
  function wide(text) { pen.font = FONT; return pen.measureText(text).width; }

  function shortened(text, most) {
    if (wide(text) <= most) { return text; }
    for (var kept = text.length - 1; kept > 1; kept--) {
      var head = (kept + 1) >> 1, short = text.slice(0, head) + "…" + text.slice(text.length - (kept - head));
      if (wide(short) <= most) { return short; }
    }
    return "…";
  }

  function short(value, largest) {
    var unit = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(function (u) { return largest >= 10 * u[0]; }) || [1, ""];
    return value ? +(value / unit[0]).toPrecision(5) + unit[1] : "0";
  }

  // --- axes ---
  function scale(axis, places) {
    return {
      time: false, distr: axis.log ? 3 : 1,
      range: function (u, low, high) {  // the given limits, but for a span that was zoomed into
        return places && (low !== places[0] || high !== places[places.length - 1]) ? [low, high] : [axis.low, axis.high];
      }
    };
  }

  function labels(axis, upright) {
    return function (u, splits, at, space, step) {
      var most = upright ? LABEL : step * (u.width - 80) / (axis.high - axis.low) - 6;
      if (axis.names) { return splits.map(function (i) { return shortened(axis.names[upright ? -i - 1 : i] || "", most); }); }
      var largest = Math.max.apply(null, splits.map(Math.abs));
      return splits.map(function (v) { return v === null ? "" : short(v, axis.log ? Math.abs(v) : largest); });
    };
  }

  // Of the places on a logarithmic axis, those that get a label: 1, 2 and 5 where a decade has room for them.
  function round(splits, decade) {
    var every = Math.ceil(40 / decade);
    return splits.map(function (v) {
      var power = Math.floor(Math.log10(v) + 1e-9), first = Math.round(v / Math.pow(10, power));
      return (first === 1 && power % every === 0) || (decade > 130 && (first === 2 || first === 5)) || (decade > 80 && decade <= 130 && first === 3) ? v : null;
    });
  }

  function axis(given, upright, hidden) {
    var found = {
      stroke: css("muted"), font: FONT, labelFont: FONT, labelSize: 18, labelGap: 2, gap: 4, size: hidden ? 5 : 24,
      grid: { stroke: css("grid"), width: 1, show: !given.names }, ticks: { stroke: css("axis"), width: 1, size: 4 }, values: labels(given, upright)
    };
    if (given.title && !hidden) { found.label = given.title; }
    if (given.whole) { found.incrs = WHOLE; }
    if (given.log) { found.filter = function (u, splits) { return round(splits, ((upright ? u.height : u.width) - 80) / Math.log10(given.high / given.low)); }; }
    if (hidden) { found.values = function (u, splits) { return splits.map(function () { return ""; }); }; }
    if (upright) {
      found.side = 3;
      found.space = 30;
      found.size = function (u, values) { return 12 + Math.max.apply(null, [0].concat((values || []).map(wide))); };
      if (given.names) {
        found.splits = given.names.map(function (_, i) { return -i - 0.5; });
        found.values = function () { return given.names.map(function (name) { return shortened(name, LABEL); }); };
      }
    } else if (given.names) {
      found.space = 8 + Math.min(60, Math.max.apply(null, given.names.map(wide)));
    } else {
      found.space = function (u, at, low, high) { return given.log ? 34 : Math.max(56, wide(short(+(low + (high - low) / 7).toPrecision(3), high)) + 14); };
    }
    return found;
  }

  // --- what uPlot has no paths for, in pixels of its canvas ---
  function drawShapes(u, given) {
    var ctx = u.ctx, ratio = devicePixelRatio, i;
    function x(v) { return u.valToPos(v, "x", true); }
    function y(v) { return u.valToPos(v, "y", true); }
    ctx.save();
    ctx.beginPath();
    ctx.rect(u.bbox.left - 6, u.bbox.top - 6, u.bbox.width + 12, u.bbox.height + (given.kind === "bars" ? 6 : 12));
    ctx.clip();
    ctx.fillStyle = ink(given);
    if (given.kind === "bars") {
      ctx.globalAlpha = 0.85;
      for (i = 0; i < given.x.length; i++) {
        if (given.y[i] !== null) { ctx.fillRect(x(given.x[i]) + 0.5, y(given.y[i]), Math.max(x(given.end[i]) - x(given.x[i]) - 1, 1), y(0) - y(given.y[i])); }
      }
    } else {
      var dots = given.kind === "dots", few = given.x.length <= 400, big = new Set(given.big);
      for (i = 0; i < given.x.length; i++) {
        if (given.x[i] === null || given.y[i] === null) { continue; }
        ctx.globalAlpha = dots ? (few ? 0.65 : 0.45) : given.loose && !big.has(i) ? 0.4 : 1;
        ctx.beginPath();
        ctx.arc(x(given.x[i]), y(given.y[i]), ratio * (dots ? (few ? 3 : 1.8) : big.has(i) ? 5 : 3.5), 0, 7);
        ctx.fill();
      }
    }
    ctx.restore();
  }

  function drawCells(u, cells) {
    cells.levels.forEach(function (row, at) {
      var top = u.valToPos(-at, "y", true) + 1, tall = u.valToPos(-at - 1, "y", true) - top - 1;
      for (var from = 0, to; from < row.length; from = to) {
        for (to = from + 1; row[to] === row[from]; to++) { /* cells of one level are one rectangle */ }
        var left = Math.max(u.valToPos(cells.x[from], "x", true), u.bbox.left);
        var right = Math.min(u.valToPos(cells.x[to], "x", true), u.bbox.left + u.bbox.width);
        if (row[from] !== "0" && right > left) { u.ctx.fillStyle = css("h" + row[from]); u.ctx.fillRect(left, top, right - left, tall); }
      }
    });
  }

  // Dashed lines at values, and names beside points: each text where it touches no other.
  function annotate(u, panel, first) {
    var ctx = u.ctx, ratio = devicePixelRatio, box = u.bbox, taken = [], joined = [], right = box.left + box.width;
    function free(left, top, wide, tall, all) {
      return !(all ? taken.concat(joined) : taken).some(function (t) { return left < t[2] + 4 && t[0] < left + wide + 4 && top < t[3] && t[1] < top + tall; });
    }
    function put(text, left, top, wide) {
      taken.push([left, top, left + wide, top + ROW * ratio]);
      ctx.fillText(text, left, top + 11 * ratio);
    }
    function dashed(x1, y1, x2, y2) {
      ctx.beginPath();
      ctx.moveTo(x1, y1);
      ctx.lineTo(x2, y2);
      ctx.stroke();
    }
    ctx.save();
    ctx.font = ratio * 12 + FONT.slice(2);
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    ctx.fillStyle = css("text");
    ctx.strokeStyle = css("muted");
    ctx.lineWidth = ratio;
    ctx.setLineDash([4 * ratio, 3 * ratio]);
    (panel.down || []).forEach(function (mark) {
      var x = u.valToPos(mark[0], "x", true), long = ctx.measureText(mark[1]).width, top = box.top - (ROW + 2) * ratio;
      if (x < box.left - 1 || x > right + 1) { return; }
      dashed(x, box.top, x, box.top + box.height);
      if (!first) { return; }
      var left = Math.max(box.left, Math.min(x - long / 2, right - long + 8 * ratio));
      while (!free(left, top, long, ROW * ratio)) { top -= ROW * ratio; }
      put(mark[1], left, top, long);
    });
    (panel.across || []).forEach(function (mark) {
      var y = u.valToPos(mark[0], "y", true), text = shortened(mark[1], box.width / ratio - 8), long = ctx.measureText(text).width;
      dashed(box.left, y, right, y);
      var top = y - box.top < 18 * ratio ? y + 2 * ratio : y - (ROW + 2) * ratio;
      if (free(right - long - 2, top, long, ROW * ratio)) { put(text, right - long - 2, top, long); }
    });
    var places = (panel.names || []).map(function (n) { return [u.valToPos(n[0], "x", true), u.valToPos(n[1], "y", true), n[2]]; });
    places.forEach(function (p, i) {
      taken.push([p[0] - 4, p[1] - 4, p[0] + 4, p[1] + 4]);
      for (var part = 0; i && part < 1; part += 0.02) {  // the line through the best
        var x = p[0] + (places[i - 1][0] - p[0]) * part, y = p[1] + (places[i - 1][1] - p[1]) * part;
        joined.push([x, y, x, y]);
      }
    });
    places.forEach(function (p) {
      var long = ctx.measureText(p[2]).width, places = [[9, -18], [-9 - long / ratio, -18], [9, 4], [-9 - long / ratio, 4]];
      places = places.map(function (away) { return [p[0] + away[0] * ratio, p[1] + away[1] * ratio]; }).filter(function (at) {
        return at[0] > box.left && at[0] + long < right + 14 * ratio && at[1] > box.top - 6 * ratio && at[1] + ROW * ratio < box.top + box.height &&
          free(at[0], at[1], long, ROW * ratio);
      });
      var best = places.find(function (at) { return free(at[0], at[1], long, ROW * ratio, true); }) || places[0];  // may cross only the line
      if (best) { put(p[2], best[0], best[1], long); }
    });
    ctx.restore();
  }

  // --- one panel ---
  // uPlot wants one sorted x for all lines: a series has undefined where only others have a value.
  function aligned(data, series) {
    var places = [...new Set(series.flatMap(function (s) { return ruled(s) ? s.x : []; }).concat(data.x.low, data.x.high))];
    places = places.filter(function (v) { return v !== null; }).sort(function (a, b) { return a - b; });
    return [places].concat(series.map(function (s) {
      var own = new Map(ruled(s) ? s.x.map(function (v, i) { return [v, s.y[i]]; }) : []);
      return places.map(function (v) { return own.get(v); });
    }));
  }

  function ruled(series) { return series.kind !== "dots" && series.kind !== "bars" && !series.loose; }

  function plot(element, data, at) {
    var panel = data.panels[at], last = at === data.panels.length - 1, table = aligned(data, panel.series);
    var stepped = uPlot.paths.stepped({ align: 1 }), straight = uPlot.paths.linear();
    var u = new uPlot({
      width: element.clientWidth, height: panel.height + (panel.down && !at ? ROW * panel.down.length : 0),
      padding: [panel.down && !at ? ROW * panel.down.length + 8 : 8, Math.max(16, wide(short(data.x.high, data.x.high)) / 2 + 4), 0, 0],
      scales: { x: scale(data.x, table[0]), y: scale(panel.y) },
      axes: [axis(data.x, false, !last), axis(panel.y, true)],
      legend: { show: !at && panel.series.length > 1, live: false, markers: { width: 3 } },
      cursor: {
        y: false, points: { show: false }, drag: { x: !data.x.names, y: false },
        sync: data.panels.length > 1 ? { key: element.id, setSeries: true } : {}
      },
      series: [{}].concat(panel.series.map(function (s) {
        var found = { label: s.name, stroke: ink(s), width: 2, points: { show: false }, paths: ruled(s) ? straight : function () { return null; } };
        if (s.kind === "step" || s.kind === "area") { found.paths = stepped; }
        if (s.kind === "area") { found.fill = ink(s) + "24"; }
        if (s.kind === "front") { found.dash = [6, 4]; found.width = 1.5; }
        return found;
      })),
      hooks: {
        drawSeries: [function (u, i) { if (["dots", "bars", "points"].includes(panel.series[i - 1].kind)) { drawShapes(u, panel.series[i - 1]); } }],
        draw: [function (u) { if (panel.cells) { drawCells(u, panel.cells); } annotate(u, panel, !at); }]
      }
    }, table, element);
    u.root.querySelectorAll(".u-series").forEach(function (entry, i) { entry.hidden = !panel.series[i].name; });
    u.over.addEventListener("pointermove", function (event) {
      var said = told(u, data, panel, event.clientX - u.over.getBoundingClientRect().left, event.clientY - u.over.getBoundingClientRect().top);
      if (said) { tooltip.show(said, event.clientX, event.clientY); } else { tooltip.hide(); }
    });
    u.over.addEventListener("pointerleave", tooltip.hide);
    return u;
  }

  // The tip of the point under the pointer, or the values of the nearest place that has some.
  function told(u, data, panel, left, top) {
    var best = NEAR, said = "";
    panel.series.forEach(function (s, at) {
      (u.series[at + 1].show && s.tips || []).forEach(function (tip, i) {
        if (s.x[i] === null || s.y[i] === null) { return; }
        var away = Math.hypot(u.valToPos(s.x[i], "x") - left, u.valToPos(s.y[i], "y") - top);
        if (away < best) { best = away; said = tip; }
      });
    });
    best = Infinity;
    if (!said) {
      data.at.forEach(function (place, i) {
        var away = place === null ? Infinity : Math.abs(u.valToPos(place, "x") - left);
        if (away < best) { best = away; said = data.rows[i].join("\n"); }
      });
    }
    return said;
  }

  var elements = [...document.querySelectorAll(".chart")];
  function build(element, number) {
    var data = JSON.parse(element.dataset.chart);
    (element.plots || []).forEach(function (u) { u.destroy(); });
    element.id = "chart-" + number;
    element.plots = data.panels.map(function (_, at) { return plot(element, data, at); });
    element.classList.add("drawn");
  }
  function all() { elements.forEach(build); }
  function fit() {
    elements.forEach(function (element) {
      element.plots.forEach(function (u) { if (u.width !== element.clientWidth) { u.setSize({ width: element.clientWidth, height: u.height }); } });
    });
  }
  all();
  new ResizeObserver(fit).observe(document.body);
  matchMedia("print").addEventListener("change", fit);
  new MutationObserver(all).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
})();
