// SPDX-License-Identifier: Apache-2.0
// What the server's pages can't do by themselves: follow what changes, count seconds, copy. Without it, one reloads.
"use strict";
(() => {
  const ahead = Date.now() / 1000 - Number(document.body.dataset.now); // this clock, against the edge's
  const now = () => Date.now() / 1000 - ahead;
  const byId = (id) => document.getElementById(id);
  const two = (number) => String(number).padStart(2, "0");

  const age = (seconds) => {
    const s = Math.max(0, Math.floor(seconds));
    if (s < 1) return "now";
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)}:${two(s % 60)} min`;
    if (s < 172800) return `${Math.floor(s / 3600)}:${two(Math.floor((s % 3600) / 60))} h`;
    return `${Math.floor(s / 86400)} days`;
  };

  const say = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };

  const tick = () => {
    if (document.hidden) return;
    const at = now();
    for (const each of document.querySelectorAll("[data-t]")) {
      const text = age(at - each.dataset.t);
      say(each, "ago" in each.dataset && text !== "now" ? `${text} ago` : text);
    }
    for (const each of document.querySelectorAll("[data-until]")) {
      const overdue = at - each.dataset.until;
      each.classList.toggle("late", overdue >= 1);
      if (Math.abs(overdue) < 1) say(each, "(due now)");
      else say(each, overdue > 0 ? `(${age(overdue)} overdue)` : `(due in ${age(-overdue)})`);
    }
    for (const each of document.querySelectorAll("[data-utc]")) {
      say(each, new Date(at * 1000).toISOString().slice(0, 19).replace("T", " "));
    }
  };

  // --- what the edge sends: parts of the page, and rows of the table -------------------------------------------

  const parsed = (html) => {
    const template = document.createElement("template");
    template.innerHTML = html; // rendered by the edge, where all that is somebody else's is escaped
    return template.content;
  };

  const keepingFocus = (element, change) => {
    const active = document.activeElement;
    const within = active && element.contains(active) && element !== active;
    const link = within ? active.getAttribute("href") : null;
    const id = within ? active.id : "";
    change();
    if (!within) return;
    const links = link ? [...document.querySelectorAll("a[href]")] : [];
    const again = id ? byId(id) : links.find((each) => each.getAttribute("href") === link);
    if (again) again.focus({ preventScroll: true });
  };

  const replaceParts = (parts) => {
    for (const [id, html] of Object.entries(parts)) {
      const element = byId(id);
      if (!element) continue;
      const printed = element.querySelector("#terminal");
      const scrolled = printed ? printed.scrollTop : 0;
      const atEnd = !printed || printed.scrollTop + printed.clientHeight >= printed.scrollHeight - 8;
      const unfolded = new Map([...element.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
      keepingFocus(element, () => element.replaceChildren(parsed(html)));
      for (const each of element.querySelectorAll("details[id]")) {
        if (unfolded.has(each.id)) each.open = unfolded.get(each.id); // as the reader left it
      }
      const again = element.querySelector("#terminal");
      if (again) again.scrollTop = atEnd ? again.scrollHeight : scrolled;
    }
    ready();
  };

  const replaceRows = ({ order, html }) => {
    const body = byId("rows");
    if (!body) return;
    keepingFocus(body, () => {
      for (const [id, text] of Object.entries(html)) {
        const made = parsed(text).firstElementChild;
        const old = byId(id);
        if (old) old.replaceWith(made);
        else body.append(made);
      }
      let place = body.firstElementChild;
      for (const id of order) {
        const row = byId(id);
        if (!row) continue;
        if (row === place) place = place.nextElementSibling;
        else body.insertBefore(row, place);
      }
      while (place) {
        const next = place.nextElementSibling;
        place.remove();
        place = next;
      }
    });
  };

  const announce = () => {
    const news = byId("news");
    const trouble = document.querySelector("#counts .trouble b, #summary .finding.bad .fact");
    const text = trouble ? (byId("counts") ? `${trouble.textContent} in trouble` : trouble.textContent) : "";
    if (byId("counts")) document.title = `${trouble ? `${trouble.textContent} in trouble, ` : ""}${byId("counts").querySelector("b").textContent} machines · tinkedge`;
    if (news && news.dataset.said !== text) {
      if ("said" in news.dataset) say(news, text || "no machine is in trouble");
      news.dataset.said = text;
    }
  };

  const live = byId("live");
  let source = null;
  const follow = () => {
    const url = document.body.dataset.live;
    if (!url || !live || source || document.hidden) return;
    const mine = (source = new EventSource(url));
    mine.onopen = () => {
      live.className = "live";
      say(live, "live");
      byId("reload").hidden = true;
    };
    mine.onmessage = (message) => {
      const told = JSON.parse(message.data);
      if (told.rows) replaceRows(told.rows);
      if (told.parts) replaceParts(told.parts);
      tick();
      announce();
    };
    mine.onerror = () => {
      live.className = "still";
      say(live, mine.readyState === EventSource.CLOSED ? "not live" : "no answer, trying again");
      byId("reload").hidden = false;
      if (mine.readyState === EventSource.CLOSED && source === mine) {
        source = null;
        setTimeout(follow, 30000);
      }
    };
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && source) {
      source.close(); // a page that nobody sees costs the edge nothing
      source = null;
    } else {
      follow();
      tick();
    }
  });

  // --- small things --------------------------------------------------------------------------------------------

  const ready = () => {
    for (const button of document.querySelectorAll("[data-copy][hidden]")) button.hidden = !navigator.clipboard;
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    navigator.clipboard.writeText(byId(button.dataset.copy).textContent).then(
      () => say(button, "Copied"),
      () => say(button, "Select it and copy"),
    );
  });
  for (const select of document.querySelectorAll("form.filter select")) {
    select.addEventListener("change", () => select.form.requestSubmit());
  }
  const filters = byId("filters");
  // Where CSS can't show what is folded (::details-content), a wide screen gets it unfolded by this.
  if (filters && matchMedia("(min-width: 44.01rem)").matches && !CSS.supports("selector(::details-content)")) filters.open = true;
  const terminal = byId("terminal");
  if (terminal) terminal.scrollTop = terminal.scrollHeight;
  ready();
  tick();
  setInterval(tick, 1000);
  follow();
})();
