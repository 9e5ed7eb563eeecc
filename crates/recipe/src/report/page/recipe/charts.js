// The charts of a recipe, as Vega-Lite specifications.
"use strict";

const KINDS = [
    ["predicted", "the recipe, predicted", "var(--front)", "diamond"],
    ["measured", "the recipe, measured", "var(--worse)", "square"],
    ["quant", "other quants, measured", "var(--other)", "circle"],
];

// The series of the charts, from the result.
function seriesOf({recipe, quants, unit, types, roles, layers}) {
    const size = bytes => bytes / unit.bytes;
    const point = (kind, label, bytes, kld) =>
        ({label, kind, size: size(bytes), kld: onLogScale(kld.value), lo: onLogScale(kld.lo), hi: onLogScale(kld.hi)});
    const {check, kld: {predicted, measured}} = recipe;
    const others = check?.like ? [...quants, {...check.like, label: check.like.path}] : quants;
    const own = [["predicted", predicted], ["measured", measured]].filter(([, kld]) => kld !== null);
    return {
        unit: unit.symbol, types, roles, layers: [...new Set(layers)].filter(layer => layer !== null).sort((a, b) => a - b),
        frontier: recipe.frontier.map(of => ({size: size(of.size_bytes), bpw: of.bpw, kld: onLogScale(of.kld)})),
        points: [
            ...others.map(of => point("quant", of.label, of.size_bytes, of.kld)),
            ...own.map(([kind, kld]) => point(kind, "recipe", recipe.size_bytes, kld)),
        ],
        tensors: recipe.tensors.map(({name, role, type, kld, bytes}, i) =>
            ({name, role, layer: layers[i], kind: types.indexOf(type), kld, bytes})),
    };
}

// The line ends at this many times the size of the largest point.
const FAR_ABOVE = 1.25;

const typeTip = [
    {field: "name", title: "tensor"}, {field: "type"}, {field: "kld", type: "quantitative", title: "KLD, predicted", format: ".4~g"},
    {field: "size", title: "MiB", format: ",.4~r"},
];

const charts = {
    frontier: page => {
        const points = page.points.filter(point => point.kld !== null);
        const withInterval = points.filter(point => point.lo !== null && point.hi !== null);
        const most = FAR_ABOVE * Math.max(...page.points.map(point => point.size));
        const front = page.frontier.filter(size => size.kld !== null && size.size <= most);
        const kinds = KINDS.filter(([kind]) => points.some(point => point.kind === kind));
        const scale = index => ({domain: kinds.map(([, name]) => name), range: kinds.map(kind => kind[index])});
        const kind = `{${KINDS.map(([kind, name]) => `${kind}: '${name}'`)}}[datum.kind]`;
        // Labels avoid what the other layers draw; a layer that draws nothing would stop them.
        const layer = (values, rest) => (values.length > 0 ? [{data: {values}, ...rest}] : []);
        const tip = [{field: "size", title: `size, ${page.unit}`, format: ".3~f"}, kldTip("kld")];
        return {
            height: 420,
            encoding: {
                x: {field: "size", type: "quantitative", title: `size, ${page.unit}`, scale: {zero: false, nice: false, padding: 24}, axis: {format: ",~r", ...fewTicks}},
                y: {...kldAxis, scale: {...kldAxis.scale, padding: 26}, field: "kld"},
            },
            layer: [
                ...layer(front, {
                    mark: {type: "line", strokeWidth: 2, color: "var(--front)", opacity: 0.7},
                    encoding: {order: {field: "size"}},
                }),
                ...layer(front, {
                    mark: {type: "point", size: 14, filled: true, color: "var(--front)", opacity: 0.5},
                    encoding: {tooltip: [...tip, {field: "bpw", title: "bits a parameter", format: ".3~f"}]},
                }),
                ...layer(withInterval, {
                    mark: {type: "rule", strokeWidth: 1.5, color: "var(--soft)"},
                    encoding: {y: {field: "lo"}, y2: {field: "hi"}},
                }),
                ...layer(points, {
                    transform: [{calculate: kind, as: "name"}],
                    mark: {type: "point", filled: true, size: 110, opacity: 1, stroke: "var(--paper)", strokeWidth: 1},
                    encoding: {
                        fill: {field: "name", scale: scale(2)}, shape: {field: "name", scale: scale(3)},
                        tooltip: [{field: "label", title: "model"}, {field: "name", title: "this is"}, ...tip,
                            {field: "lo", title: "interval from", format: NATS}, {field: "hi", title: "to", format: NATS}],
                    },
                }),
                ...layer(points, {name: "labels", mark: {type: "text", limit: 150}, encoding: {text: {field: "label"}}}),
            ],
        };
    },

    types: page => grid(page.tensors.map(tensor => ({
        ...tensor, type: page.types[tensor.kind], size: tensor.bytes / 2 ** 20,
        colour: colourOf(tensor.kind, page.types.length),
    })), page.roles, page.layers, typeTip),
};
