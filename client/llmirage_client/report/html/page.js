// Tooltips and the values under the pointer. The page reads well without any of it.
var tooltip = (function () {
  "use strict";
  // A chart's <title> elements become tooltips that appear at once.
  document.querySelectorAll("svg.chart title").forEach(function (title) {
    title.parentNode.setAttribute("data-tip", title.textContent);
    title.remove();
  });

  var tip = document.createElement("div");
  tip.id = "tip";
  document.body.appendChild(tip);
  var cursor = null;

  function hide() {
    tip.style.display = "none";
    if (cursor) { cursor.remove(); cursor = null; }
  }

  function rowUnder(area, event) {
    if (!area.rows) { area.rows = JSON.parse(area.dataset.rows); }
    var svg = area.ownerSVGElement;
    var point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    var places = area.rows[0], best = 0;
    for (var i = 1; i < places.length; i++) {
      if (Math.abs(places[i] - point.x) < Math.abs(places[best] - point.x)) { best = i; }
    }
    var box = area.firstElementChild;
    if (!cursor || cursor.parentNode !== area) {
      if (cursor) { cursor.remove(); }
      cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
      cursor.setAttribute("class", "cursor");
      area.appendChild(cursor);
    }
    cursor.setAttribute("d", "M" + places[best] + " " + box.getAttribute("y") + "v" + box.getAttribute("height"));
    return area.rows[1][best].join("\n");
  }

  document.addEventListener("pointermove", function (event) {
    var target = event.target;
    if (!target.closest) { return; }
    var said = null, marked = target.closest("[data-tip]"), area = target.closest("g.hover");
    if (marked) { hide(); said = marked.getAttribute("data-tip"); } else if (area) { said = rowUnder(area, event); }
    if (said) { show(said, event.clientX, event.clientY); } else { hide(); }
  });
  document.addEventListener("pointerleave", hide);
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
