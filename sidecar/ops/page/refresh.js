"use strict";
// Fetches the page again, and replaces the parts that changed: the place, the focus and what is open stay.
const button = document.getElementById("pause");
button.hidden = false;
let paused = false;
button.onclick = () => {
  paused = !paused;
  button.textContent = paused ? "Go on" : "Pause";
  button.setAttribute("aria-pressed", paused);
};
async function refresh() {
  if (!paused && !document.hidden) {
    const gone = document.getElementById("gone");
    try {
      const answer = await fetch(location.pathname, { cache: "no-store" });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      gone.hidden = true;
      document.title = fresh.title;
      for (const part of fresh.querySelectorAll("[data-part]")) {
        const mine = document.querySelector(`[data-part="${part.dataset.part}"]`);
        if (mine && mine.innerHTML !== part.innerHTML) {
          mine.className = part.className;
          const focused = mine.contains(document.activeElement) ? document.activeElement.id : "";
          const scrolled = [...mine.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
          mine.innerHTML = part.innerHTML;
          mine.querySelectorAll(".scroll").forEach((each, i) => (each.scrollLeft = scrolled[i] || 0));
          if (focused) document.getElementById(focused)?.focus();
        }
      }
    } catch {
      gone.hidden = false;
    }
  }
  setTimeout(refresh, Number(document.body.dataset.every) * 1000);
}
setTimeout(refresh, Number(document.body.dataset.every) * 1000);
