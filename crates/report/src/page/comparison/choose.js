// Lets you choose the models that are in colour.
"use strict";

const chosen = SLOTS.map(slot => page.shown[slot] ?? null);

// Puts the chosen models into every chart, its key and the list of models.
function show() {
    for (const view of views.values()) {
        if (view.getState().signals.chosen) view.signal("chosen", [...chosen]).runAsync();
    }
    const sample = slot => `<svg viewBox="0 0 32 8" aria-hidden="true"><path class="sample slot${slot}" d="M0 4H32"/></svg>`;
    for (const key of document.querySelectorAll("ul.key")) {
        key.replaceChildren(...chosen.flatMap((label, slot) => {
            if (label === null) return [];
            const item = document.createElement("li");
            item.innerHTML = sample(slot);
            item.append(label);
            return [item];
        }));
    }
    const isFull = !chosen.includes(null);
    for (const box of document.querySelectorAll(".chooser input")) {
        const slot = chosen.indexOf(box.value);
        box.checked = slot >= 0;
        box.disabled = isFull && slot < 0;
        box.nextElementSibling.innerHTML = slot < 0 ? "" : sample(slot);
    }
}

// Chooses a model, or drops it if it is chosen.
function choose(label) {
    const slot = chosen.indexOf(label);
    const free = chosen.indexOf(null);
    if (slot >= 0) chosen[slot] = null;
    else if (free >= 0) chosen[free] = label;
    show();
}

for (const box of document.querySelectorAll(".chooser input")) {
    box.addEventListener("change", () => choose(box.value));
}
drawn.then(() => {
    for (const view of views.values()) {
        view.addEventListener("click", (_, item) => item?.datum?.label && choose(item.datum.label));
    }
    show();
});
