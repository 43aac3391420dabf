"use strict";
(() => {
  const table = document.getElementById("comparison");

  const lastUpTo = (steps, step) => {
    let found = 0;
    steps.forEach((each, place) => { if (each <= step) found = place; });
    return found;
  };

  const watch = (place) => {
    const times = JSON.parse(place.querySelector("script").textContent);
    const slider = place.querySelector("input");
    const said = place.querySelector("output");
    const move = () => {
      const step = Number(slider.value);
      const share = times.last ? step / times.last : 0;
      said.textContent = step.toLocaleString("en");
      place.querySelectorAll("svg[data-left] .cursor").forEach((cursor) => {
        const frame = cursor.closest("svg").dataset;
        const x = Number(frame.left) + share * Number(frame.width);
        cursor.setAttribute("x1", x);
        cursor.setAttribute("x2", x);
      });
      place.querySelectorAll(".bars").forEach((bars) => {
        const series = times[bars.dataset.series];
        if (!series || !series.length) return;
        const isShare = bars.dataset.series === "shares";
        const at = isShare
          ? Math.max(0, Math.min(series.length - 1, Math.ceil(share * series.length) - 1))
          : lastUpTo(times.steps, step);
        [...bars.rows].forEach((row, number) => {
          const value = series[at][number];
          row.querySelector(".bar").setAttribute("width", isShare ? 100 * value / times.most : value);
          row.cells[2].textContent = (isShare ? 100 * value : value).toFixed(0);
        });
      });
    };
    slider.addEventListener("input", move);
  };

  const open = (body, wanted) => {
    const button = body.querySelector("tr.row button");
    const more = body.querySelector("tr.more");
    const folded = more.querySelector("template");
    if (wanted && folded) {
      folded.replaceWith(folded.content);
      more.querySelectorAll(".times").forEach(watch);
    }
    more.hidden = !wanted;
    button.setAttribute("aria-expanded", String(wanted));
  };

  document.querySelectorAll(".times").forEach(watch);

  if (table) {
    const bodies = [...table.tBodies];
    const heads = [...table.tHead.rows[0].cells];
    const key = (body, column) => {
      const cell = body.rows[0].cells[column];
      if (column === 0) return cell.textContent.trim();
      return cell.dataset.value === "" ? null : Number(cell.dataset.value);
    };
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const down = before ? before === "ascending" : column > 0;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1;
      const compare = (one, other) => {
        const a = key(one, column), b = key(other, column);
        if (a === null || b === null) return (a === null) - (b === null);
        return sign * (column === 0 ? a.localeCompare(b, "en", { numeric: true }) : a - b);
      };
      table.append(...[...table.tBodies].sort(compare));
    }));
    bodies.forEach((body) => body.querySelector("tr.row button").addEventListener("click", () => {
      open(body, body.querySelector("tr.more").hidden);
    }));
    document.getElementById("filter").addEventListener("input", (event) => {
      const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      bodies.forEach((body) => {
        const text = body.rows[0].cells[0].textContent.toLowerCase();
        body.hidden = !words.every((word) => text.includes(word));
      });
    });
    const follow = () => {
      const body = document.getElementById(location.hash.slice(1));
      if (body && body.parentElement === table) {
        body.hidden = false;
        open(body, true);
        body.rows[0].scrollIntoView();
      }
    };
    window.addEventListener("hashchange", follow);
    follow();
    if (bodies.length === 1) open(bodies[0], true);
  }
})();
