// Draws the charts, and lets you sort tables. Without it, the page still has all texts and tables.
"use strict";

const page = seriesOf(JSON.parse(document.getElementById("data").textContent));
// The charts by their names.
const views = new Map();

document.documentElement.classList.add("js");

// Lets labels avoid each other and all that is drawn; those that find no room are left out.
function placeLabels(spec) {
    const isLabels = mark => mark.name === "labels_marks";
    for (const mark of spec.marks.filter(isLabels)) {
        mark.transform = [{
            type: "label", size: {signal: "[max(width, 1), max(height, 1)]"}, padding: 0,
            // The front falls to the right, so there is most room below it on the left.
            anchor: ["bottom-left", "left", "top-right", "right", "top", "bottom", "top-left", "bottom-right"],
            offset: [8],
            avoidMarks: spec.marks.filter(mark => !isLabels(mark)).map(mark => mark.name),
            sort: {field: "datum.front", order: "descending"},
        }];
    }
    return spec;
}

async function draw(element) {
    const spec = {
        width: "container", autosize: {type: "fit-x", contains: "padding"},
        config: chartConfig,
        ...charts[element.dataset.chart](page),
    };
    const {view} = await vegaEmbed(element, spec, {
        mode: "vega-lite", renderer: "svg", actions: false, defaultStyle: false, patch: placeLabels,
        tooltip: {disableDefaultStyle: true}, logLevel: vega.Error,
    });
    views.set(element.dataset.chart, view);
}

function sortBy(header) {
    const row = header.parentElement;
    const column = [...row.children].indexOf(header);
    const isAscending = header.getAttribute("aria-sort") !== "ascending";
    for (const other of row.children) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", isAscending ? "ascending" : "descending");
    const body = header.closest("table").tBodies[0];
    const key = row => row.children[column].dataset.value ?? row.children[column].textContent.trim();
    const compare = (a, b) => {
        // What has no value comes last either way.
        if (a === "" || b === "") return (a === "") - (b === "");
        const order = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
        return isAscending ? order : -order;
    };
    body.append(...[...body.rows].sort((a, b) => compare(key(a), key(b))));
}

for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => sortBy(button.parentElement));
}
// On paper the charts are as wide as the text, whatever the window's width.
const PAPER_WIDTH = 680;
addEventListener("beforeprint", () => views.forEach(view => view.signal("width", PAPER_WIDTH).run()));
addEventListener("afterprint", () => dispatchEvent(new Event("resize")));

// A chart that fails leaves the others alone.
const drawn = Promise.all([...document.querySelectorAll(".chart")].map(chart => draw(chart).catch(console.error)));
