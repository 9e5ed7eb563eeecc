// The charts of a map of sensitivity, as Vega-Lite specifications.
"use strict";

// The series of the charts, from the result. A tensor's cost at a type is a KLD, the ends of its interval, 1 if it was
// measured, and the bytes that the type saves; the last one of the result is that of the original's own type.
function seriesOf({types, compared_type, by_role, by_layer, tensors}) {
    const costOf = (costs, type) => {
        const [original, cost] = [costs.at(-1), costs.slice(0, -1).find(cost => cost.type === type)];
        if (cost === undefined) return null;
        const {value, lo, hi} = cost.kld;
        return [value, onLogScale(lo), onLogScale(hi), Number(cost.is_measured), Math.max(0, original.bytes - cost.bytes)];
    };
    return {
        types, shown: Math.max(0, types.indexOf(compared_type)), roles: by_role.map(of => of.role),
        layers: by_layer.map(({layer, kld, relative_cost}) => ({layer, kld: kld.value, lo: kld.lo, hi: kld.hi, relative: relative_cost})),
        tensors: tensors.map(({name, role, layer, costs}) => ({name, role, layer, costs: types.map(type => costOf(costs, type))})),
    };
}

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
