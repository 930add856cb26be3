// The swim-lane chart: the lanes of data-lanes (see swimlane.py) on a canvas that stands still in a scrolling room. The room is
// as wide as the whole run at the present zoom, so that scrolling, by whatever device, is moving through time and lanes.
(function () {
  "use strict";
  var ROW = 22, BAR = 12, TOP = 26, RIGHT = 14, INDENT = 12, DEEPEST = 6, WIDEST = 8e6;
  var STATUS = ["", "failed", "cancelled by the client"];
  var chart = document.getElementById("swimlane");
  if (!chart) { return; }
  chart.hidden = false;
  var data = JSON.parse(chart.dataset.lanes), names = data.name.split("\n"), ids = {};
  data.id.split("\n").forEach(function (id, place) { ids[data.id_of[place]] = id; });
  var scroller = chart.querySelector(".lanes"), room = chart.querySelector(".room"), canvas = chart.querySelector("canvas");
  var pen = canvas.getContext("2d"), said = document.getElementById("lanes-said"), byId = {};
  ["search", "status", "turn", "order", "time", "color", "in", "out", "whole"].forEach(function (name) {
    byId[name] = document.getElementById("lanes-" + name);
  });

  // --- what there is: requests and lanes as arrays, times in seconds since the run's first request ---
  var N = data.start.length, LANES = data.up.length, TREES = 0, unit = data.unit_s;
  var start = new Float64Array(N), first = new Float64Array(N), end = new Float64Array(N);  // first: NaN without one
  var laneOf = new Int32Array(N), treeOf = new Int32Array(LANES), from = new Int32Array(LANES + 1), joins = new Map();
  var fork = ["", "fork", "spawn", "child"], links = [];
  (function () {
    var at = 0, time = 0, lane, i;
    for (lane = 0; lane < LANES; lane++) {
      from[lane] = at;
      for (i = 0; i < data.requests[lane]; i++, at++) {
        time += data.start[at];
        start[at] = time * unit;
        first[at] = data.first[at] < 0 ? NaN : start[at] + data.first[at] * unit;
        end[at] = start[at] + Math.max(data.took[at], 0) * unit;
        laneOf[at] = lane;
      }
    }
    from[LANES] = N;
  })();
  var depth = new Int32Array(LANES), treeFrom = [];
  for (var own = 0; own < LANES; own++) {
    depth[own] = data.up[own] ? depth[own - data.up[own]] + 1 : 0;
    if (!data.up[own]) { treeFrom.push(own); }
    treeOf[own] = treeFrom.length - 1;
  }
  TREES = treeFrom.length;
  treeFrom.push(LANES);
  var treeStart = new Float64Array(TREES).fill(Infinity);
  var treeEnd = new Float64Array(TREES), slowest = new Float64Array(TREES), treeSize = new Int32Array(TREES);
  for (var n = 0; n < N; n++) {
    var tree = treeOf[laneOf[n]];
    treeStart[tree] = Math.min(treeStart[tree], start[n]);
    treeEnd[tree] = Math.max(treeEnd[tree], end[n]);
    treeSize[tree]++;
    if (first[n] - start[n] > slowest[tree]) { slowest[tree] = first[n] - start[n]; }
  }
  data.joins.forEach(function (join) {
    joins.set(join[0], join.slice(1));
    join.slice(1).forEach(function (child) {
      if (from[child + 1] > from[child]) { links.push([child, lastEnd(child), laneOf[join[0]], start[join[0]], "join"]); }
    });
  });
  for (var child = 0; child < LANES; child++) {
    var above = child - data.up[child], leaves = null;
    if (above === child || from[child + 1] === from[child]) { continue; }
    for (var r = from[above]; r < from[above + 1]; r++) { if (data.turn[r] === data.turn_of_parent[child] - 1) { leaves = end[r]; break; } }
    links.push([above, leaves === null ? start[from[child]] : leaves, child, start[from[child]], fork[data.kind[child]] || "child"]);
  }

  function lastEnd(lane) {
    var latest = 0;
    for (var i = from[lane]; i < from[lane + 1]; i++) { latest = Math.max(latest, end[i]); }
    return latest;
  }

  // --- what is shown: rows of lanes and of headings, after filter and order ---
  var rows = [], rowOf = new Int32Array(LANES), fits = new Uint8Array(N), low = 0, high = 1, chosen = -1;
  var zoom = 1, css = {}, dragged = null, waiting = false, labels = new Map(), labelPx = 0;

  function choose() {
    var words = byId.search.value.trim().toLowerCase(), status = byId.status.value;
    var turns = /^\s*(\d+)\s*(?:-\s*(\d+)\s*)?$/.exec(byId.turn.value), shownRequests = 0, shownLanes = 0, alone = [];
    byId.turn.setAttribute("aria-invalid", String(!turns && byId.turn.value.trim() !== ""));
    var least = turns ? +turns[1] : 0, most = turns ? +(turns[2] || turns[1]) : Infinity, keeps = new Uint8Array(LANES);
    for (var i = 0; i < N; i++) {
      var lane = laneOf[i];
      fits[i] = (status === "" || data.status[i] === status) && data.turn[i] >= least && data.turn[i] <= most &&
        (!words || names[lane].toLowerCase().indexOf(words) >= 0 || textOf(i).toLowerCase().indexOf(words) >= 0) ? 1 : 0;
      if (fits[i]) { keeps[lane] = 1; shownRequests++; }
    }
    var whole = shownRequests === N;
    for (lane = LANES - 1; lane >= 0; lane--) {
      if (keeps[lane] & 1) { shownLanes++; }
      if (keeps[lane] && data.up[lane]) { keeps[lane - data.up[lane]] |= 2; }  // parents stay, for the connection
    }
    var by = { first: slowest, took: treeEnd.map(function (t, i) { return t - treeStart[i]; }), size: treeSize }[byId.order.value];
    var trees = Array.from(treeStart, function (_, i) { return i; });
    trees.sort(function (a, b) { return (by ? by[b] - by[a] : 0) || treeStart[a] - treeStart[b]; });
    rows = [];
    rowOf.fill(-1);
    var branches = trees.some(function (t) { return lanesOf(t) > 1; });
    trees.forEach(function (t) {
      var kept = [];
      for (var l = treeFrom[t]; l < treeFrom[t + 1]; l++) { if (keeps[l] || whole) { kept.push(l); } }
      if (lanesOf(t) === 1) { alone = alone.concat(kept); return; }
      if (kept.length) { rows.push(heading(t)); kept.forEach(add); }
    });
    if (branches && alone.length) { rows.push("Conversations without children"); }
    alone.forEach(add);
    said.textContent = whole ? "" : shownRequests.toLocaleString("en") + " of " + N.toLocaleString("en") + " requests, " +
      shownLanes.toLocaleString("en") + " of " + LANES.toLocaleString("en") + " conversations";
    if (chosen >= 0 && !fits[chosen]) { chosen = -1; }
    limits();
  }

  function add(lane) {
    rowOf[lane] = rows.length;
    rows.push(lane);
  }

  function lanesOf(t) { return treeFrom[t + 1] - treeFrom[t]; }

  function heading(t) {
    return names[treeFrom[t]] + ": " + lanesOf(t) + " conversations, " + treeSize[t] + " requests, " +
      figure(treeEnd[t] - treeStart[t]) + " s, began at " + figure(treeStart[t]) + " s";
  }

  function textOf(i) { return (ids[i] || "") + " " + (i in data.error ? data.errors[data.error[i]] : ""); }

  function limits() {
    var own = byId.time.value === "tree";
    low = 0; high = 0;
    for (var t = 0; t < TREES; t++) { high = Math.max(high, treeEnd[t] - (own ? treeStart[t] : 0)); }
    high = high || 1;
    layout();
  }

  function layout() {
    var wide = scroller.clientWidth;
    labelPx = Math.round(Math.min(nameWidth(), 210, wide * 0.3));
    labels.clear();
    scroller.style.height = Math.min(TOP + rows.length * ROW + 18, Math.max(260, Math.min(innerHeight * 0.7, 640))) + "px";
    zoom = Math.min(Math.max(zoom, 1), WIDEST / Math.max(plotPx(), 1));
    room.style.width = zoom === 1 ? "100%" : labelPx + plotPx() * zoom + RIGHT + "px";
    room.style.height = Math.max(TOP + rows.length * ROW + 2, scroller.clientHeight) + "px";
    canvas.style.width = scroller.clientWidth + "px";
    canvas.style.height = scroller.clientHeight + "px";
    canvas.width = scroller.clientWidth * devicePixelRatio;
    canvas.height = scroller.clientHeight * devicePixelRatio;
    soon();
  }

  function nameWidth() {
    var widest = 40;
    pen.font = css.font;
    rows.slice(0, 1000).forEach(function (lane) {
      if (typeof lane !== "number") { return; }
      widest = Math.max(widest, pen.measureText(names[lane]).width + INDENT * Math.min(depth[lane], DEEPEST));
    });
    return widest + 16;
  }

  function plotPx() { return Math.max(scroller.clientWidth - labelPx - RIGHT, 40); }
  function perPx() { return (high - low) / (plotPx() * zoom); }
  function timeAt(px) { return low + (scroller.scrollLeft + px - labelPx) * perPx(); }
  function pxOf(time) { return labelPx + (time - low) / perPx() - scroller.scrollLeft; }
  function offset(lane) { return byId.time.value === "tree" ? treeStart[treeOf[lane]] : 0; }

  // The place that is at `px` stays there.
  function zoomTo(wanted, px) {
    var time = timeAt(px);
    zoom = wanted;
    layout();
    scroller.scrollLeft = (time - low) / perPx() - (px - labelPx);
    soon();
  }

  function show(a, b) {
    zoom = (high - low) / Math.max(b - a, (high - low) * plotPx() / WIDEST);
    layout();
    scroller.scrollLeft = (a - low) / perPx();
    soon();
  }

  function soon() {
    if (!waiting) { waiting = true; requestAnimationFrame(function () { waiting = false; draw(); }); }
  }

  // --- drawing ---
  function colors() {
    var style = getComputedStyle(document.documentElement);
    ["text", "muted", "card", "grid", "axis", "bad", "c1", "c3", "c4", "c5", "c6", "c7",
      "h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"].forEach(function (name) { css[name] = style.getPropertyValue("--" + name); });
    css.font = "12px " + getComputedStyle(document.body).fontFamily;
    soon();
  }

  function draw() {
    var wide = scroller.clientWidth, tall = scroller.clientHeight, top = scroller.scrollTop;
    var a = Math.max(0, Math.floor(top / ROW)), b = Math.min(rows.length, Math.ceil((top + tall - TOP) / ROW)), i;
    pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    pen.fillStyle = css.card;
    pen.fillRect(0, 0, wide, tall);
    pen.font = css.font;
    pen.textBaseline = "middle";
    var ticks = times(), y;
    pen.strokeStyle = css.grid;
    pen.lineWidth = 1;
    stroke(ticks.map(function (t) { return [t.px, TOP, t.px, tall]; }));
    pen.save();
    pen.beginPath();
    pen.rect(labelPx, TOP, wide - labelPx, tall - TOP);
    pen.clip();
    links.forEach(function (link) { drawLink(link, a, b, top, wide); });
    for (i = a; i < b; i++) { if (typeof rows[i] === "number") { drawLane(rows[i], middle(i, top), wide); } }
    if (dragged && dragged.to !== null) {
      pen.fillStyle = css.c1;
      pen.globalAlpha = 0.18;
      pen.fillRect(Math.min(dragged.px, dragged.to), TOP, Math.abs(dragged.to - dragged.px), tall);
      pen.globalAlpha = 1;
    }
    pen.restore();
    pen.save();
    pen.beginPath();
    pen.rect(0, TOP, wide, tall - TOP);
    pen.clip();
    for (i = a; i < b; i++) {
      y = middle(i, top);
      if (typeof rows[i] === "string") {
        pen.fillStyle = css.card;
        pen.fillRect(0, y - ROW / 2, wide, ROW);
        pen.fillStyle = css.text;
        pen.font = "600 " + css.font;
        pen.fillText(shortened(rows[i], wide - 14), 6, y);
        pen.font = css.font;
      } else {
        label(rows[i], y);
      }
    }
    pen.restore();
    pen.fillStyle = css.muted;
    pen.textAlign = "center";
    ticks.forEach(function (t) { if (t.px >= labelPx) { pen.fillText(t.text, Math.min(t.px, wide - pen.measureText(t.text).width / 2 - 2), 15); } });
    pen.textAlign = "left";
    pen.fillText(byId.time.value === "day" ? zoneName() : high < 180 ? "s" : "min:s", 6, 15);
  }

  function middle(row, top) { return TOP + row * ROW + ROW / 2 - top; }

  function stroke(lines) {
    pen.beginPath();
    lines.forEach(function (l) { pen.moveTo(l[0], l[1]); pen.lineTo(l[2], l[3]); });
    pen.stroke();
  }

  function drawLane(lane, y, wide) {
    var shift = offset(lane), drawnTo = -1, last = "", i, x1, x2, xf, pause = [], waits = [];
    var cache = byId.color.value === "cache";
    if (from[lane] === from[lane + 1]) {
      waits.push([pxOf(treeStart[treeOf[lane]] - shift), y, pxOf(treeEnd[treeOf[lane]] - shift), y]);
    }
    for (i = from[lane] + 1; i < from[lane + 1]; i++) {
      x1 = pxOf(end[i - 1] - shift); x2 = pxOf(start[i] - shift);
      if (x2 > x1 && x2 > labelPx && x1 < wide) { (joins.has(i) ? waits : pause).push([Math.max(x1, labelPx - 9), y, Math.min(x2, wide + 9), y]); }
    }
    dashed(pause, css.axis, [1.5, 3.5]);
    dashed(waits, css.c4, [6, 3]);
    for (i = from[lane]; i < from[lane + 1]; i++) {
      x1 = pxOf(start[i] - shift); x2 = Math.max(pxOf(end[i] - shift), x1 + 1.6);
      if (x2 < labelPx || x1 > wide) { continue; }
      var status = data.status[i], share = data.cached[i], kind = status + (cache ? level(share) : "");
      if (i !== chosen && x2 <= drawnTo && kind === last) { continue; }  // under the pixel before
      drawnTo = x2; last = kind;
      pen.globalAlpha = fits[i] ? 1 : 0.18;
      x1 = Math.max(x1, labelPx - 4); x2 = Math.min(x2, wide + 4);
      if (status === "2") {
        pen.setLineDash([3, 2]);
        pen.strokeStyle = css.muted;
        pen.strokeRect(x1, y - BAR / 2, x2 - x1, BAR);
        pen.setLineDash([]);
      } else {
        pen.fillStyle = status === "1" ? css.bad : cache ? level(share) : css.c1;
        pen.fillRect(x1, y - BAR / 2, x2 - x1, BAR);
        xf = first[i] - shift;
        if (status === "0" && !cache && xf === xf && (xf = Math.min(pxOf(xf), x2)) > x1) {
          pen.fillStyle = css.c5;
          pen.fillRect(x1, y - BAR / 2, xf - x1, BAR);
        }
      }
      if (i === chosen) {
        pen.globalAlpha = 1;
        pen.strokeStyle = css.text;
        pen.lineWidth = 2;
        pen.strokeRect(x1 - 2, y - BAR / 2 - 2, x2 - x1 + 4, BAR + 4);
        pen.lineWidth = 1;
      }
    }
    pen.globalAlpha = 1;
  }

  function level(share) { return share < 0 ? css.muted : css["h" + Math.min(8, Math.floor(share / 12.5) + 1)]; }

  function dashed(lines, color, dash) {
    if (!lines.length) { return; }
    pen.strokeStyle = color;
    pen.lineWidth = 1.6;
    pen.setLineDash(dash);
    stroke(lines);
    pen.setLineDash([]);
    pen.lineWidth = 1;
  }

  function drawLink(link, a, b, top, wide) {
    var one = rowOf[link[0]], two = rowOf[link[2]];
    if (one < 0 || two < 0 || Math.max(one, two) < a || Math.min(one, two) >= b) { return; }
    var shift = offset(link[0]), x1 = pxOf(link[1] - shift), x2 = pxOf(link[3] - shift);
    if (Math.max(x1, x2) < labelPx - 40 || Math.min(x1, x2) > wide + 40) { return; }
    var bend = Math.min(Math.max(Math.abs(x2 - x1) / 2, 6), 40), y1 = middle(one, top), y2 = middle(two, top);
    pen.strokeStyle = css[{ fork: "c3", spawn: "c6", child: "c7", join: "c4" }[link[4]]];
    pen.lineWidth = 1.6;
    pen.setLineDash(link[4] === "join" ? [5, 3] : []);
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2);
    pen.stroke();
    pen.setLineDash([]);
    pen.lineWidth = 1;
  }

  function label(lane, y) {
    var at = 6 + INDENT * Math.min(depth[lane], DEEPEST);
    if (at > 6) {
      pen.strokeStyle = css.axis;
      stroke([[at - 8, y - 8, at - 8, y - 1], [at - 8, y - 1, at - 3, y - 1]]);
    }
    if (!labels.has(lane)) { labels.set(lane, shortened(names[lane], labelPx - at - 8)); }
    pen.fillStyle = css.muted;
    pen.fillText(labels.get(lane), at, y);
  }

  // The text, or its start and end around an ellipsis: ids differ at both.
  function shortened(text, most) {
    if (pen.measureText(text).width <= most) { return text; }
    for (var kept = text.length - 1; kept > 1; kept--) {
      var head = (kept + 1) >> 1, short = text.slice(0, head) + "…" + text.slice(text.length - (kept - head));
      if (pen.measureText(short).width <= most) { return short; }
    }
    return "…";
  }

  // --- time: seconds since a start, or the time of day where the reader is ---
  function zone(unix) { return -60 * new Date(unix * 1000).getTimezoneOffset(); }
  function wall(time) { var unix = data.unix_s + time / data.speed; return unix + zone(unix); }

  function zoneName() {
    var shift = zone(data.unix_s) / 3600;
    return "UTC" + (shift ? (shift > 0 ? "+" : "−") + Math.abs(shift) : "");
  }

  function times() {
    var day = byId.time.value === "day", speed = day ? data.speed : 1, zero = day ? wall(0) * speed : 0;
    var seconds = perPx() / speed * 72, power = Math.pow(10, Math.floor(Math.log10(seconds))), step;
    var nice = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
    step = seconds <= 1 ? [1, 2, 5, 10].map(function (m) { return m * power; }).find(function (s) { return s >= seconds * 0.999; })
      : nice.find(function (s) { return s >= seconds; }) || Math.ceil(seconds / 86400) * 86400;
    var digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)), found = [];
    var begin = (timeAt(labelPx) + zero) / speed, finish = (timeAt(scroller.clientWidth) + zero) / speed;
    for (var n = Math.ceil(begin / step - 1e-9); n * step <= finish; n++) {
      found.push({ px: pxOf(n * step * speed - zero), text: clock(n * step, digits, day || high >= 180) });
    }
    return found;
  }

  function clock(seconds, digits, parts) {
    if (!parts) { return seconds.toFixed(digits); }
    var whole = Math.floor(seconds + 1e-9), rest = digits ? (seconds - whole).toFixed(digits).slice(1) : "";
    var h = Math.floor(whole / 3600) % 24 + (byId.time.value === "day" ? 0 : 24 * Math.floor(whole / 86400));
    function two(n) { return (n < 10 ? "0" : "") + n; }
    var m = Math.floor(whole / 60) % 60, s = two(whole % 60) + rest;
    return byId.time.value === "day" || h ? two(h) + ":" + two(m) + ":" + s : m + ":" + s;
  }

  function figure(value) {
    var size = Math.abs(value);
    return size >= 100 ? Math.round(value).toLocaleString("en") : size >= 10 ? value.toFixed(1) : value.toFixed(2);
  }

  // --- one request, by pointer, finger or keyboard ---
  function under(event) {
    var box = canvas.getBoundingClientRect(), px = event.clientX - box.left, y = event.clientY - box.top;
    var row = Math.floor((y - TOP + scroller.scrollTop) / ROW);
    if (y < TOP || row < 0 || row >= rows.length) { return {}; }
    var lane = rows[row], best = -1, near = 5;
    if (typeof lane !== "number") { return {}; }
    if (px < labelPx) { return { lane: lane }; }
    for (var i = from[lane]; i < from[lane + 1]; i++) {
      var away = Math.max(pxOf(start[i] - offset(lane)) - px, px - pxOf(end[i] - offset(lane)), 0);
      if (away < near) { near = away; best = i; }
    }
    return { lane: lane, request: best };
  }

  function tellLane(lane) {
    var kind = fork[data.kind[lane]], turn = data.turn_of_parent[lane], count = data.requests[lane];
    return [names[lane], (kind ? kind + (turn ? " of turn " + (turn - 1) + ", " : " before the first turn, ") : "") +
      count + (count === 1 ? " request" : " requests"), "its tree began at " + figure(treeStart[treeOf[lane]]) + " s"].join("\n");
  }

  function tell(i) {
    var took = (end[i] - start[i]) * 1e3, lines = [names[laneOf[i]] + ", turn " + data.turn[i]], parts = [];
    var day = data.unix_s === null ? "" : ", " + new Date((data.unix_s + start[i] / data.speed) * 1e3).toLocaleTimeString("en-GB");
    lines.push("sent at " + figure(start[i]) + " s" + day);
    if (first[i] === first[i] && data.status[i] === "0") {
      var wait = (first[i] - start[i]) * 1e3;
      parts.push("TTFT " + figure(wait) + " ms");
      if (data.tokens_out[i] > 1) { parts.push("TPOT " + figure((took - wait) / (data.tokens_out[i] - 1)) + " ms"); }
    }
    if (data.status[i] === "0") { parts.push("latency " + figure(took) + " ms"); }
    if (parts.length) { lines.push(parts.join(", ")); }
    if (data.tokens_in[i] >= 0) {
      lines.push(data.tokens_in[i].toLocaleString("en") + " tokens in" + (data.cached[i] >= 0 ? ", " + data.cached[i] + " % cached" : ""));
    }
    if (data.tokens_out[i] >= 0) { lines.push(data.tokens_out[i].toLocaleString("en") + " tokens out"); }
    if (data.status[i] !== "0") { lines.push(STATUS[data.status[i]] + (i in data.error ? ": " + data.errors[data.error[i]] : "")); }
    (joins.get(i) || []).forEach(function (lane) { lines.push("waited for " + names[lane]); });
    if (ids[i]) { lines.push(ids[i]); }
    return lines.join("\n");
  }

  // Moves to a request: into view, with its figures beside it and read out.
  function go(i) {
    if (i === undefined || i < 0) { return; }
    chosen = i;
    var y = TOP + rowOf[laneOf[i]] * ROW, shift = offset(laneOf[i]), px = pxOf(start[i] - shift);
    if (y - TOP < scroller.scrollTop) { scroller.scrollTop = y - TOP; }
    if (y + 2 * ROW > scroller.scrollTop + scroller.clientHeight) { scroller.scrollTop = y + 2 * ROW - scroller.clientHeight; }
    if (px < labelPx || px > scroller.clientWidth - 40) { scroller.scrollLeft += px - labelPx - plotPx() / 3; }
    said.textContent = tell(i).replace(/\n/g, "; ");
    soon();
    requestAnimationFrame(function () {  // after the scrolling, which hides tips
      if (chosen !== i) { return; }
      var box = canvas.getBoundingClientRect();
      tooltip.show(tell(i), box.left + Math.max(pxOf(start[i] - shift), labelPx), box.top + middle(rowOf[laneOf[i]], scroller.scrollTop));
    });
  }

  // The fitting request `by` places on in the lane, or in the nearest lane above or below that has one.
  function beside(by) {
    if (chosen < 0) { return nearest(0, 1, timeAt(labelPx)); }
    for (var i = chosen + by; i >= from[laneOf[chosen]] && i < from[laneOf[chosen] + 1]; i += by) { if (fits[i]) { return i; } }
    return chosen;
  }

  function nearest(row, by, time) {
    for (; row >= 0 && row < rows.length; row += by) {
      var best = -1, lane = rows[row];
      if (typeof lane !== "number") { continue; }
      for (var i = from[lane]; i < from[lane + 1]; i++) {
        if (fits[i] && (best < 0 || Math.abs(start[i] - offset(lane) - time) < Math.abs(start[best] - offset(lane) - time))) { best = i; }
      }
      if (best >= 0) { return best; }
    }
    return chosen;
  }

  function beyond(by) {
    if (chosen < 0) { return nearest(Math.floor(scroller.scrollTop / ROW), 1, timeAt(labelPx)); }
    return nearest(rowOf[laneOf[chosen]] + by, by, start[chosen] - offset(laneOf[chosen]));
  }

  function center() {
    var px = chosen < 0 ? NaN : pxOf(start[chosen] - offset(laneOf[chosen]));
    return px >= labelPx && px <= scroller.clientWidth ? px : labelPx + plotPx() / 2;
  }

  function whole() { zoom = 1; layout(); }

  var keys = {
    "+": function () { zoomTo(zoom * 2, center()); }, "=": function () { keys["+"](); },
    "-": function () { zoomTo(zoom / 2, center()); }, "0": whole,
    ArrowLeft: function () { go(beside(-1)); }, ArrowRight: function () { go(beside(1)); },
    ArrowUp: function () { go(beyond(-1)); }, ArrowDown: function () { go(beyond(1)); },
    Escape: function () { chosen = -1; dragged = null; tooltip.hide(); soon(); }
  };
  scroller.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) { return; }
    event.preventDefault();
    keys[event.key]();
  });
  byId.in.addEventListener("click", function () { zoomTo(zoom * 2, center()); });
  byId.out.addEventListener("click", function () { zoomTo(zoom / 2, center()); });
  byId.whole.addEventListener("click", whole);
  scroller.addEventListener("wheel", function (event) {
    if (!event.ctrlKey && !event.metaKey) { return; }
    event.preventDefault();
    zoomTo(zoom * Math.pow(2, -event.deltaY / (event.deltaMode ? 6 : 200)), Math.max(event.clientX - canvas.getBoundingClientRect().left, labelPx));
  }, { passive: false });
  canvas.addEventListener("pointerdown", function (event) {
    var px = event.clientX - canvas.getBoundingClientRect().left;
    if (event.pointerType !== "mouse" || event.button || px < labelPx) { return; }
    dragged = { px: px, to: null };
    canvas.setPointerCapture(event.pointerId);
  });
  document.addEventListener("pointermove", function (event) {
    if (event.target !== canvas) { return; }
    if (dragged) {
      var px = Math.max(event.clientX - canvas.getBoundingClientRect().left, labelPx);
      if (dragged.to !== null || Math.abs(px - dragged.px) > 4) { dragged.to = px; soon(); }
      return;
    }
    var found = under(event);
    if (found.request >= 0) { tooltip.show(tell(found.request), event.clientX, event.clientY); }
    else if (found.lane !== undefined && found.request === undefined) { tooltip.show(tellLane(found.lane), event.clientX, event.clientY); }
    else { tooltip.hide(); }
  });
  canvas.addEventListener("pointerleave", tooltip.hide);
  canvas.addEventListener("pointerup", function () {
    var span = dragged;
    dragged = null;
    if (span && span.to !== null) {
      show(timeAt(Math.min(span.px, span.to)), timeAt(Math.max(span.px, span.to)));
      canvas.addEventListener("click", function (event) { event.stopImmediatePropagation(); }, { capture: true, once: true });
    }
  });
  canvas.addEventListener("pointercancel", function () { dragged = null; soon(); });
  canvas.addEventListener("click", function (event) {
    var found = under(event).request;
    if (found >= 0) { go(found); } else { keys.Escape(); }
  });
  scroller.addEventListener("scroll", soon);
  addEventListener("resize", function () { layout(); });
  ["search", "turn"].forEach(function (name) { byId[name].addEventListener("input", choose); });
  ["status", "order"].forEach(function (name) { byId[name].addEventListener("change", choose); });
  byId.time.addEventListener("change", function () { zoom = 1; limits(); });
  byId.color.addEventListener("change", function () {
    chart.querySelectorAll(".legend [data-of]").forEach(function (item) {
      item.hidden = item.dataset.of !== "" && item.dataset.of !== (byId.color.value || "phase");
    });
    soon();
  });
  byId.color.dispatchEvent(new Event("change"));
  new MutationObserver(colors).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", colors);
  matchMedia("print").addEventListener("change", layout);
  colors();
  choose();
})();
