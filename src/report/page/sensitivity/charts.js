// The charts of a map of sensitivity, as Vega-Lite specifications.
"use strict";

const cellTip = [
    {field: "name", title: "tensor"}, {field: "kld", type: "quantitative", title: "KLD", format: ".4~g"},
    {field: "lo", title: "interval from", format: NATS}, {field: "hi", title: "to", format: NATS}, {field: "how", title: "this KLD is"},
    {field: "relative", title: "relative cost", format: ".2~r"}, {field: "saved", title: "MiB saved", format: ",.4~r"},
];

const charts = {
    heat: page => grid(heat(page, page.shown, "kld").cells, page.roles, page.layers.map(layer => layer.layer), cellTip),

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
