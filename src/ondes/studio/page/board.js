// Groups as lanes, and the sounds in them as cards.

import { byId, decibels, el, hertz, isTyping, percent, pressed, setBusy } from "./dom.js";
import { hueOf, rgbOf } from "./colours.js";
import { finder } from "./finder.js";
import { act, clearMix, factors, listenMix, mix, stemFactors, store } from "./store.js";

export class Board {
  #panel = byId("panel-music");
  #selected = new Set(); // components
  #drawn = "";
  #separator = "talk";
  isNamed = false; // whether stems with names are shown and heard, or numbered sounds

  hearing = null; // the key of what plays alone

  constructor(timeline, hear, changed) {
    this.timeline = timeline;
    this.hear = hear;
    this.changed = changed;
    // Wherever the focus is: after a click on a button it is nowhere.
    document.addEventListener("keydown", (event) => !this.#panel.hidden && !byId("dialog").open && this.#key(event));
    listenMix(() => this.showMix());
  }

  // ---- drawing ----

  show(state) {
    const { project, components, job } = state;
    setBusy(this.#panel, job?.state === "running");
    const signature = JSON.stringify([this.isNamed, project, components?.model, state.recordings.length, state.separators]);
    if (signature === this.#drawn || this.#panel.querySelector("[data-editing]")) return;
    this.#drawn = signature;
    const focused = document.activeElement?.closest?.("[data-key]")?.dataset.key;
    this.#panel.replaceChildren(...this.#content(state));
    this.#showSelected();
    this.showMix();
    setBusy(this.#panel, job?.state === "running");
    if (focused) this.#panel.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  #content(state) {
    const { project, components, recordings } = state;
    if (!recordings.length) return [];
    if (this.isNamed) return this.#named(state);
    if (!components) return [el("div", { class: "line" }, el("h2", {}, "Sounds"), this.#kinds()), finder("music", "Find the sounds")];
    const items = new Map(components.items.map((item) => [item.index, item]));
    for (const index of this.#selected) if (!items.has(index)) this.#selected.delete(index);
    const grouped = new Set(project.groups.flatMap((group) => group.components));
    const rest = components.items.filter(({ index }) => !grouped.has(index));
    const isProposed = project.groups.some(({ is_proposed }) => is_proposed);
    return [
      el("div", { class: "line" },
        el("h2", {}, "Sounds"), this.#kinds(),
        el("p", { class: "quiet grow" },
          "Notes, hits and hiss, not instruments: listen with ▶ and group them."),
        this.#hearAll(),
        el("button", { type: "button", disabled: !isProposed, onclick: () => act("confirm") }, "Keep all groups"),
        el("button", { type: "button", id: "new-group", onclick: () => this.#newGroup(), title: "New group from the selected sounds (N)" }, "New group")),
      el("div", { class: "lanes" },
        ...project.groups.map((group, n) => this.#lane(group, n, items, components)),
        this.#restLane(rest)),
      el("details", { class: "again" }, el("summary", {}, "Find or group again"),
        finder("music", "Find again"),
        this.#proposer()),
    ];
  }

  #kinds() {
    const kind = (isNamed, text, title) => el("button", {
      type: "button", id: isNamed ? "named" : "numbered", "aria-pressed": String(this.isNamed === isNamed), title,
      onclick: () => {
        this.isNamed = isNamed;
        this.show(store.state);
        this.changed();
      } }, text);
    return el("div", { class: "joined", role: "group", "aria-label": "Kind of sounds" },
      kind(false, "Numbered sounds", "Found in this recording alone, without knowing any instrument"),
      kind(true, "Named stems", "By a separator that was trained for them"));
  }

  #hearAll() {
    const isOwn = (key) => key.startsWith("s") === this.isNamed;
    return el("button", { type: "button", id: "hear-all", onclick: () => clearMix(isOwn), title: "Clear every mute and solo" }, "Hear all");
  }

  // ---- stems with names ----

  #named({ stems, separators }) {
    const choice = el("select", { id: "separator" },
      ...Object.entries(separators).map(([name, sounds]) => el("option", { value: name }, `${name}: ${sounds}`)));
    choice.value = this.#separator in separators ? this.#separator : Object.keys(separators)[0];
    choice.addEventListener("change", () => (this.#separator = choice.value));
    return [
      el("div", { class: "line" },
        el("h2", {}, "Sounds"), this.#kinds(),
        el("label", { class: "grow" }, "Separator ", choice),
        stems && this.#hearAll(),
        el("button", { type: "button", id: "separate", class: "primary", data: { waits: "" }, onclick: () => act("separate", { model: choice.value }) },
          stems ? "Separate again" : "Separate")),
      stems && el("div", { class: "lanes" }, ...stems.items.map((item) => this.#stem(item, stems))),
      el("p", { class: "quiet" },
        "“talk” takes a voice that speaks from under music and effects; it knows no singing and no instruments, so a song without speech is all music. For vocals, drums and bass of a produced song use ",
        el("a", { href: "https://github.com/adefossez/demucs", target: "_blank", rel: "noopener noreferrer" }, "demucs"),
        "; for instruments that you have recordings of, train a separator with “ondes train” and open it here."),
    ].filter(Boolean);
  }

  #stem({ index, name, share, curve }, { model, label }) {
    const key = `s${index}`;
    const lane = el("section", { class: `lane stem hue-${hueOf(index + 1)}`, "aria-label": `Stem ${name}`, data: { stem: index } },
      el("div", { class: "head" },
        el("strong", {}, name),
        this.#strip(key, name, [index], [curve]),
        el("p", { class: "quiet grow" }, `${percent(share)} · by ${label} `,
          share < store.state.silent_share && el("span", { class: "tag warn" }, "almost silent"))),
      sparkline(curve));
    this.#overlays(lane, () => ({ model, components: [index], colour: rgbOf(index + 1) }));
    return lane;
  }

  #proposer() {
    const groups = el("input", { type: "number", min: 1, max: 9, value: 4, id: "n-groups" });
    const propose = () => act("propose", { groups: Number(groups.value) });
    return el("div", { class: "line" },
      el("label", {}, "Groups ", groups),
      el("button", { type: "button", data: { waits: "" }, onclick: propose }, "Propose groups again"),
      el("button", { type: "button", onclick: () => act("ungroup") }, "Remove all groups"));
  }

  #lane(group, n, items, components) {
    const { id, name, is_proposed: proposed } = group;
    const own = group.components.map((index) => items.get(index)).filter(Boolean)
      .sort((a, b) => b.share - a.share);
    const share = own.reduce((sum, item) => sum + item.share, 0);
    const isSilent = share < store.state.silent_share;
    const others = store.state.project.groups.filter((other) => other.id !== id);
    const lane = el("section", {
      class: `lane hue-${hueOf(id)}${proposed ? " proposed" : ""}`,
      "aria-label": `Group ${name}`, data: { group: id },
    },
    el("div", { class: "head" },
      el("kbd", { title: `Key ${n + 1} moves the selected sounds here` }, String(n + 1)),
      this.#nameOf(group),
      this.#strip(`g${id}`, name, group.components, own.length ? own.map(({ curve }) => curve) : [[0]]),
      el("p", { class: "quiet grow" },
        `${own.length} sound${own.length === 1 ? "" : "s"} · ${percent(share)} `,
        proposed && el("span", { class: "tag" }, "proposed"),
        isSilent && el("span", { class: "tag warn" }, "almost silent")),
      this.#mover(id),
      el("button", { type: "button", disabled: !proposed, onclick: () => act("confirm", { group: id }) }, "Keep"),
      menu(`More for ${name}`,
        el("button", {
          type: "button", data: own.length ? { waits: "" } : {}, disabled: !own.length, title: "Find more sounds inside this group",
          onclick: () => act("split further", { group: id }),
        }, "Split further"),
        el("button", {
          type: "button", disabled: own.length < 2, title: "Move the selected sounds of this group into a new one beside it",
          onclick: () => this.#split(group, own),
        }, "Split"),
        others.length > 0 && this.#merger(group, others),
        el("button", { type: "button", onclick: () => act("remove", { group: id }),
          title: "Remove the group; its sounds stay" }, "Remove"))),
    el("div", { class: "cards", role: "list", "aria-label": `Sounds of ${name}` },
      ...own.map((item) => el("div", { role: "listitem" }, this.#card(item, id)))));
    this.#droppable(lane, id);
    this.#showsShare(lane.querySelector(".head"), group.components, id);
    return lane;
  }

  #restLane(rest) {
    const lane = el("section", { class: "lane rest", "aria-label": "The rest: in no group" },
      el("div", { class: "head" },
        el("kbd", { title: "Key 0 takes the selected sounds out of their groups" }, "0"), el("strong", {}, "The rest"),
        el("p", { class: "quiet grow" }, rest.length ? `${rest.length} in no group` : "every sound is in a group"),
        this.#mover(null)),
      el("div", { class: "cards", role: "list", "aria-label": "Sounds in no group" },
        ...rest.map((item) => el("div", { role: "listitem" }, this.#card(item, null)))));
    this.#droppable(lane, null);
    return lane;
  }

  #nameOf({ id, name }) {
    const input = el("input", {
      class: "name", value: name, maxlength: 80, "aria-label": "Name of the group",
      data: { key: `name-${id}` },
      onfocus: () => { input.dataset.editing = ""; },
      onblur: () => { delete input.dataset.editing; if (input.value !== name) this.#rename(input, id, name); },
      onkeydown: (event) => {
        event.stopPropagation();
        if (event.key === "Enter") input.blur();
        if (event.key === "Escape") { input.value = name; input.blur(); }
      },
    });
    return input;
  }

  async #rename(input, id, name) {
    if (!(await act("rename", { group: id, name: input.value }))) input.value = name;
  }

  // For fingers, which cannot drag, and for everybody else.
  #mover(group) {
    return el("button", { type: "button", class: "mover", onclick: () => this.#move([...this.#selected], group) },
      "Move selected here");
  }

  #merger({ id }, others) {
    const choice = el("select", { "aria-label": "Merge with another group" },
      el("option", { value: "" }, "Merge with…"),
      ...others.map((other) => el("option", { value: other.id }, other.name)));
    choice.addEventListener("change", () => act("merge", { into: id, other: Number(choice.value) }));
    return choice;
  }

  #strip(key, name, components, curves) {
    const gain = el("input", {
      type: "range", min: -40, max: 12, step: 0.5, value: store.mix.gains[key] ?? 0,
      "aria-label": `Gain of ${name}`, title: "Gain; double click for 0 dB", data: { gain: key },
      oninput: () => mix(key, { gain: Number(gain.value) }),
      ondblclick: () => { gain.value = 0; mix(key, { gain: 0 }); },
    });
    const curve = curves[0].map((_, n) => Math.max(...curves.map((each) => each[n])));
    return el("div", { class: "strip" },
      el("button", { type: "button", class: "round", title: "Hear it alone, where it is loudest", "aria-label": `Hear ${name} alone`, data: { hear: key },
        disabled: !components.length, onclick: () => this.hear(key, components, curve) }, "▶"),
      el("button", { type: "button", class: "round", title: "Mute (M)", "aria-label": `Mute ${name}`, data: { mute: key },
        onclick: () => mix(key, { mute: !store.mix.muted.has(key) }) }, "M"),
      el("button", { type: "button", class: "round", title: "Solo (S)", "aria-label": `Solo ${name}`, data: { solo: key },
        onclick: () => mix(key, { solo: !store.mix.soloed.has(key) }) }, "S"),
      gain, el("output", { class: "quiet", data: { shows: key } }));
  }

  #card(item, group) {
    const { index, share, band, silent, curve, spectrum } = item;
    const name = `Sound ${index + 1}`;
    const key = `c${index}`;
    const where = `${hertz(band[0])} to ${hertz(band[1])}`;
    const card = el("article", {
      class: `card${group ? ` hue-${hueOf(group)}` : ""}${silent ? " faint" : ""}`,
      tabindex: 0, draggable: "true", data: { key, component: index },
      "aria-label": `${name}, ${percent(share)} of the sound, mostly ${where}`,
      "aria-current": String(this.#selected.has(index)), title: `Mostly ${where}`,
    },
    el("div", { class: "title" }, el("strong", {}, name), el("span", { class: "quiet" }, percent(share))),
    el("div", { class: "curves" }, sparkline(curve), sparkline(spectrum, "spectrum")),
    this.#strip(key, name, [index], [curve]));
    card.addEventListener("click", (event) => {
      if (event.target.closest("button, input")) return;
      this.#select(index, event.ctrlKey || event.metaKey || event.shiftKey);
    });
    card.addEventListener("dragstart", (event) => {
      if (!this.#selected.has(index)) this.#select(index, false);
      event.dataTransfer.setData("text/x-ondes", JSON.stringify([...this.#selected]));
      event.dataTransfer.effectAllowed = "move";
      document.documentElement.classList.add("dragging");
    });
    card.addEventListener("dragend", () => document.documentElement.classList.remove("dragging"));
    // A slider inside a card is moved, not dragged away with the card.
    for (const input of card.querySelectorAll("input")) {
      input.addEventListener("pointerdown", () => { card.draggable = false; });
      input.addEventListener("pointerup", () => { card.draggable = true; });
      input.addEventListener("blur", () => { card.draggable = true; });
    }
    this.#showsShare(card, [index], group);
    return card;
  }

  #showsShare(element, components, group) {
    this.#overlays(element, () => components.length
      ? { model: store.state.project.model, components, colour: rgbOf(group) } : null);
  }

  #overlays(element, overlay) {
    const on = () => this.timeline.share(overlay());
    const off = () => this.timeline.share(null);
    element.addEventListener("pointerenter", (event) => event.pointerType !== "touch" && on());
    element.addEventListener("pointerleave", off);
    element.addEventListener("focusin", on);
    element.addEventListener("focusout", off);
  }

  #droppable(lane, group) {
    lane.addEventListener("dragover", (event) => {
      if (!event.dataTransfer.types.includes("text/x-ondes")) return;
      event.preventDefault();
      lane.classList.add("over");
    });
    lane.addEventListener("dragleave", (event) => {
      if (!lane.contains(event.relatedTarget)) lane.classList.remove("over");
    });
    lane.addEventListener("drop", (event) => {
      lane.classList.remove("over");
      const data = event.dataTransfer.getData("text/x-ondes");
      if (!data) return;
      event.preventDefault();
      this.#move(JSON.parse(data), group);
    });
  }

  // Buttons and sliders follow the mix without being made anew.
  showMix() {
    const { gains, muted, soloed } = store.mix;
    for (const button of this.#panel.querySelectorAll("[data-mute]"))
      pressed(button, muted.has(button.dataset.mute));
    for (const button of this.#panel.querySelectorAll("[data-solo]"))
      pressed(button, soloed.has(button.dataset.solo));
    for (const slider of this.#panel.querySelectorAll("[data-gain]"))
      if (document.activeElement !== slider) slider.value = gains[slider.dataset.gain] ?? 0;
    for (const output of this.#panel.querySelectorAll("[data-shows]")) {
      const gain = gains[output.dataset.shows] ?? 0;
      output.textContent = gain ? decibels(gain, 1) : "";
    }
    for (const button of this.#panel.querySelectorAll("[data-hear]"))
      pressed(button, button.dataset.hear === this.hearing);
    const { components, stems } = store.state;
    const heard = factors(components?.items.length ?? 0);
    for (const card of this.#panel.querySelectorAll(".card"))
      card.classList.toggle("unheard", heard[Number(card.dataset.component)] === 0);
    const heardStems = stemFactors(stems?.items.length ?? 0);
    for (const lane of this.#panel.querySelectorAll(".stem"))
      lane.classList.toggle("unheard", heardStems[Number(lane.dataset.stem)] === 0);
    const isOwn = (key) => key.startsWith("s") === this.isNamed;
    if (byId("hear-all")) byId("hear-all").disabled = ![...muted, ...soloed].some(isOwn);
  }

  // ---- actions ----

  #select(index, isMore) {
    if (!isMore) {
      const isOnly = this.#selected.size === 1 && this.#selected.has(index);
      this.#selected.clear();
      if (!isOnly) this.#selected.add(index);
    } else if (!this.#selected.delete(index)) this.#selected.add(index);
    this.#showSelected();
  }

  #showSelected() {
    const n = this.#selected.size;
    for (const card of this.#panel.querySelectorAll(".card"))
      card.setAttribute("aria-current", String(this.#selected.has(Number(card.dataset.component))));
    this.#panel.classList.toggle("selecting", n > 0);
    if (byId("new-group")) byId("new-group").textContent = n ? `New group of ${n}` : "New group";
  }

  // Selects these sounds and shows the first of them.
  choose(components) {
    this.#unselect();
    for (const component of components) this.#select(component, true);
    this.#panel.querySelector(".card[aria-current=true]")?.scrollIntoView({ block: "nearest" });
  }

  #chosen(event) {
    const focused = event?.target.closest?.(".card")?.dataset.component;
    if (focused === undefined) return [...this.#selected];
    return this.#selected.has(Number(focused)) ? [...this.#selected] : [Number(focused)];
  }

  async #move(components, group) {
    if (!components.length && group !== "new") return;
    if (await act("move", { components, group })) this.#unselect();
  }

  #unselect() {
    this.#selected.clear();
    this.#showSelected();
  }

  async #newGroup(event) {
    await this.#move(this.#chosen(event), "new");
    const last = store.state.project.groups.at(-1);
    const name = last && this.#panel.querySelector(`[data-key="name-${last.id}"]`);
    name?.focus();
    name?.select(); // what is typed next is its name
  }

  #split(group, own) {
    let chosen = group.components.filter((index) => this.#selected.has(index));
    // Without a selection the quieter half goes.
    if (!chosen.length || chosen.length === own.length)
      chosen = own.slice(Math.ceil(own.length / 2)).map(({ index }) => index);
    act("split", { group: group.id, components: chosen });
  }

  #key(event) {
    const { key, target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(target)) return;
    const card = target.closest(".card");
    if (this.isNamed && !"mMsS".includes(key)) return;
    const groups = store.state.project.groups;
    if (/^[0-9]$/.test(key)) {
      const chosen = this.#chosen(event);
      const group = key === "0" ? null : groups[Number(key) - 1]?.id;
      if (!chosen.length || group === undefined) return;
      event.preventDefault();
      this.#move(chosen, group);
    } else if ("nN".includes(key) && this.#chosen(event).length) {
      event.preventDefault();
      this.#newGroup(event);
    } else if (card && ["ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"].includes(key) && !target.closest("input")) {
      event.preventDefault();
      const cards = [...this.#panel.querySelectorAll(".card")];
      const step = key === "ArrowRight" || key === "ArrowDown" ? 1 : -1;
      const next = cards[cards.indexOf(card) + step];
      next?.focus();
      if (next && event.shiftKey) this.#select(Number(next.dataset.component), true);
    } else if (card && (key === "Enter" || key === "x") && target === card) {
      event.preventDefault();
      this.#select(Number(card.dataset.component), true);
    } else if ("mMsS".includes(key) && key.length === 1) {
      const lane = target.closest(".lane");
      const own = card ? `c${card.dataset.component}` : lane?.dataset.stem ? `s${lane.dataset.stem}`
        : lane?.dataset.group && `g${lane.dataset.group}`;
      if (!own) return;
      event.preventDefault();
      event.stopPropagation();
      if (key.toLowerCase() === "m") mix(own, { mute: !store.mix.muted.has(own) });
      else mix(own, { solo: !store.mix.soloed.has(own) });
    }
  }
}


// Actions that are needed now and then; one menu is open at a time, and lies above the page.
function menu(label, ...actions) {
  const details = el("details", { class: "menu" },
    el("summary", { "aria-label": label, title: "More" }, "⋯"), el("div", {}, ...actions));
  details.addEventListener("toggle", () => {
    if (!details.open) return;
    for (const other of document.querySelectorAll("details.menu[open]")) if (other !== details) other.open = false;
  });
  details.addEventListener("focusout", ({ relatedTarget }) => {
    if (relatedTarget && !details.contains(relatedTarget)) details.open = false;
  });
  details.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    details.open = false;
    details.firstChild.focus();
  });
  return details;
}
document.addEventListener("click", ({ target }) => {
  for (const open of document.querySelectorAll("details.menu[open]")) if (!open.contains(target)) open.open = false;
});

function sparkline(curve, kind = "") {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  if (kind) svg.setAttribute("class", kind);
  const path = document.createElementNS(svg.namespaceURI, "path");
  const width = 100 / curve.length;
  const points = curve.map((value, n) => `L${((n + 0.5) * width).toFixed(1)} ${100 - value}`);
  path.setAttribute("d", `M0 100${points.join("")}L100 100Z`);
  svg.append(path);
  return svg;
}
