// The charts of a map of sensitivity, as Vega-Lite specifications.
"use strict";

const layerAxis = {labelAngle: 0, labelOverlap: "greedy", labelSeparation: 4};

const cellColour = {
    field: "colour", type: "ordinal", legend: null,
    scale: {domain: COLOURS, range: COLOURS.map(colour => `var(--h${colour})`)},
};

const cellTip = [
    {field: "name", title: "tensor"}, {field: "kld", type: "quantitative", title: "KLD", format: ".4~g"},
    {field: "lo", title: "interval from", format: NATS}, {field: "hi", title: "to", format: NATS}, {field: "how", title: "this KLD is"},
    {field: "relative", title: "relative cost", format: ".2~r"}, {field: "saved", title: "MiB saved", format: ",.4~r"},
];

const cell = {type: "rect", stroke: "var(--paper)", strokeWidth: {expr: "bandwidth('x') < 8 ? 0.4 : 1"}};
const ofLayers = {filter: "datum.layer !== null"};
const ofNone = {filter: "datum.layer === null"};
const isDrawn = {filter: "datum.colour !== null"};
// A dot, where it does not cover its cell.
const dot = {type: "point", filled: true, size: 12, color: "var(--ink)", stroke: "var(--paper)", strokeWidth: 1};

const charts = {
    heat: page => ({
        height: {step: 22},
        data: {name: "cells", values: heat(page, page.shown, "kld").cells},
        view: {fill: "var(--panel)", stroke: "var(--line)"},
        encoding: {
            y: {
                field: "role", type: "nominal", title: null, scale: {domain: page.roles},
                axis: {labelLimit: 150, labelExpr: "containerSize()[0] < 560 && length(datum.label) > 13 ? '…' + slice(datum.label, -12) : datum.label", ticks: false, domain: false, labelPadding: 6},
            },
        },
        layer: [
            {
                transform: [ofLayers, isDrawn],
                mark: cell,
                encoding: {
                    x: {field: "layer", type: "ordinal", title: "layer", scale: {domain: page.layers.map(layer => layer.layer)}, axis: layerAxis},
                    color: cellColour, tooltip: cellTip,
                },
            },
            {
                transform: [ofNone, isDrawn],
                mark: cell,
                encoding: {x: {value: 0}, x2: {value: "width"}, color: cellColour, tooltip: cellTip},
            },
            {
                transform: [ofLayers, isDrawn, {filter: "datum.how === 'predicted'"}],
                mark: {...dot, opacity: {expr: "bandwidth('x') < 9 ? 0 : 1"}},
                encoding: {x: {field: "layer", type: "ordinal"}, tooltip: cellTip},
            },
            {
                transform: [ofNone, isDrawn, {filter: "datum.how === 'predicted'"}],
                mark: dot,
                encoding: {x: {value: {expr: "width / 2"}}, tooltip: cellTip},
            },
        ],
    }),

    layers: page => ({
        height: 220,
        data: {values: page.layers},
        encoding: {x: {field: "layer", type: "ordinal", title: "layer", axis: layerAxis}},
        layer: [
            {
                mark: {type: "bar", color: "var(--front)", opacity: 0.75},
                encoding: {
                    y: {field: "kld", type: "quantitative", title: "KLD, nats", axis: {format: NATS, tickCount: 5}},
                    tooltip: [{field: "layer"}, {field: "kld", title: "KLD", format: ".4~g"},
                        {field: "lo", title: "interval from", format: NATS}, {field: "hi", title: "to", format: NATS},
                        {field: "relative", title: "relative cost", format: ".2~r"}],
                },
            },
            {
                transform: [{filter: "isValid(datum.lo) && isValid(datum.hi)"}],
                mark: {type: "rule", color: "var(--soft)"},
                encoding: {y: {field: "lo", type: "quantitative"}, y2: {field: "hi"}},
            },
        ],
    }),
};
