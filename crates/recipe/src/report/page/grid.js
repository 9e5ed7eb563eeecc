// A grid of roles by layers: a cell for each tensor.
"use strict";

// The last of the colours of `page.css` for grids, which lie between the lowest, 0, and this one.
const LAST_COLOUR = 7;

// The colours of `n` steps: the last one is always the last colour.
function colourOf(step, n) {
    const at = n < 2 ? LAST_COLOUR : step * LAST_COLOUR / (n - 1);
    const low = Math.min(LAST_COLOUR - 1, Math.floor(at));
    return `color-mix(in oklab, var(--h${low + 1}) ${Math.round(100 * (at - low))}%, var(--h${low}))`;
}

// The key of a grid: a colour for each of the words.
function gridKey(id, words) {
    const items = words.map((text, step) => {
        const item = document.createElement("li");
        const swatch = document.createElement("i");
        swatch.className = "step";
        swatch.style.background = colourOf(step, words.length);
        item.append(swatch, text);
        return item;
    });
    document.getElementById(id).replaceChildren(...items);
}

const layerAxis = {labelAngle: 0, labelOverlap: "greedy", labelSeparation: 4};

// `cells` have a role, a layer or null, and a colour or null. Those with `isMarked` have a dot where it
// does not cover them.
function grid(cells, roles, layers, tooltip) {
    const cell = {type: "rect", stroke: "var(--paper)", strokeWidth: {expr: "bandwidth('x') < 8 ? 0.4 : 1"}};
    const dot = {type: "point", filled: true, size: 12, color: "var(--ink)", stroke: "var(--paper)", strokeWidth: 1};
    const isDrawn = {filter: "datum.colour !== null"};
    const isMarked = {filter: "datum.isMarked"};
    const [inLayer, inNone] = [{filter: "datum.layer !== null"}, {filter: "datum.layer === null"}];
    const x = {field: "layer", type: "ordinal", title: "layer", scale: {domain: layers}, axis: layerAxis};
    const color = {field: "colour", type: "nominal", scale: null};
    return {
        height: {step: 22},
        data: {name: "cells", values: cells},
        view: {fill: "var(--panel)", stroke: "var(--line)"},
        encoding: {
            y: {
                field: "role", type: "nominal", title: null, scale: {domain: roles},
                axis: {labelLimit: 150, labelExpr: "containerSize()[0] < 560 && length(datum.label) > 13 ? '…' + slice(datum.label, -12) : datum.label", ticks: false, domain: false, labelPadding: 6},
            },
        },
        layer: [
            {transform: [inLayer, isDrawn], mark: cell, encoding: {x, color, tooltip}},
            {transform: [inNone, isDrawn], mark: cell, encoding: {x: {value: 0}, x2: {value: "width"}, color, tooltip}},
            {
                transform: [inLayer, isDrawn, isMarked],
                mark: {...dot, opacity: {expr: "bandwidth('x') < 9 ? 0 : 1"}},
                encoding: {x, tooltip},
            },
            {transform: [inNone, isDrawn, isMarked], mark: dot, encoding: {x: {value: {expr: "width / 2"}}, tooltip}},
        ],
    };
}
