"use strict";
// Shows dead letters and delivers them again. The token is in its field only, and is gone with the page.
{
  const told = document.getElementById("told"), shown = document.getElementById("shown");
  const ask = async (name, fields) => {
    const headers = { Authorization: `Bearer ${document.getElementById("token").value}` };
    const answer = await fetch(`letters/${name}`, { method: "POST", headers, body: JSON.stringify(fields) });
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  };
  const add = (parent, tag, text) => {
    const made = document.createElement(tag);
    made.textContent = text;
    parent.append(made);
    return made;
  };
  const attempt = (act) => act().catch((error) => (told.textContent = error.message));
  const list = async (kind, after) => {
    const answer = await ask("list", { ...kind, after });
    if (!after) shown.replaceChildren();
    for (const letter of answer.letters) {
      const row = add(shown, "details", "");
      add(row, "summary", `${letter.id}: ${letter.topic}:${letter.partition}:${letter.offset}, ${letter.first_at}`);
      row.ontoggle = () => {
        row.ontoggle = null;
        attempt(async () => (add(row, "pre", JSON.stringify(await ask("show", { id: letter.id }), null, 2)).tabIndex = 0));
      };
    }
    told.textContent = shown.children.length ? `The first ${shown.children.length} are shown.` : "None is left.";
    if (answer.more) {
      const more = add(shown, "button", "More");
      more.onclick = () => attempt(() => (more.remove(), list(kind, answer.letters.at(-1).id)));
    }
  };
  const follow = async () => {
    const answer = await ask("replaying", {});
    told.textContent = answer.running ? "The replay is running." : `The replay has ended: ${answer.said}`;
    if (answer.running) setTimeout(() => attempt(follow), 1000);
  };
  const replay = async (kind) => {
    const what = `Deliver all dead letters of group "${kind.group}" whose reason has "${kind.reason}" to the receiver again?`;
    if (!confirm(what)) return;
    await ask("replay", kind);
    await follow();
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-do]");
    if (!button) return;
    const kind = { group: button.dataset.group, reason: button.dataset.reason };
    attempt(() => (button.dataset.do === "list" ? list(kind, 0) : replay(kind)));
  });
}
