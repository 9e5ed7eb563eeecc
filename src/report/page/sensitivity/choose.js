// Lets you choose the type and the measure that the heat map shows.
"use strict";

const [typeBox, measureBox] = [document.getElementById("type"), document.getElementById("measure")];
// As the tables show small numbers.
const short = value => value < 1e-5 ? value.toExponential() : value.toString();

function show() {
    const {cells, cuts} = heat(page, Number(typeBox.value), measureBox.value);
    const view = views.get("heat");
    view?.change("cells", vega.changeset().remove(() => true).insert(cells)).runAsync();
    const steps = [...cuts, null].map((edge, step) => {
        const item = document.createElement("li");
        const swatch = document.createElement("i");
        swatch.className = `step step${colourOf(step, cuts.length + 1)}`;
        const below = cuts[step - 1];
        const words = cuts.length === 0 ? "all" : edge === null ? `${short(below)} and above`
            : step === 0 ? `below ${short(edge)}` : `${short(below)} to ${short(edge)}`;
        item.append(swatch, words);
        return item;
    });
    document.querySelector("#heat-key").replaceChildren(...steps);
}

for (const box of [typeBox, measureBox]) box?.addEventListener("change", show);
drawn.then(() => typeBox && show());
