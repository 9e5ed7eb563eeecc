// Lets you choose the type and the measure that the heat map shows.
"use strict";

const [typeBox, measureBox] = [document.getElementById("type"), document.getElementById("measure")];
// As the tables show small numbers.
const short = value => value < 1e-5 ? value.toExponential() : value.toString();

function show() {
    const {cells, cuts} = heat(page, Number(typeBox.value), measureBox.value);
    const view = views.get("heat");
    view?.change("cells", vega.changeset().remove(() => true).insert(cells)).runAsync();
    gridKey("heat-key", [...cuts, null].map((edge, step) => {
        if (cuts.length === 0) return "all";
        if (step === 0) return `below ${short(edge)}`;
        const from = short(cuts[step - 1]);
        return edge === null ? `${from} and above` : `${from} to ${short(edge)}`;
    }));
}

for (const box of [typeBox, measureBox]) box?.addEventListener("change", show);
drawn.then(() => typeBox && show());
