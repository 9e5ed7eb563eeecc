// What the charts of all pages share.
"use strict";

const NATS = ".3~g";

// A number, if a logarithmic scale has it.
const onLogScale = value => value > 0 ? value : null;

const chartConfig = {
    background: "transparent",
    font: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif",
    padding: {left: 2, right: 14, top: 6, bottom: 2},
    view: {stroke: "var(--line)"},
    axis: {
        labelColor: "var(--ink)", titleColor: "var(--ink)", gridColor: "var(--line)", domainColor: "var(--soft)",
        tickColor: "var(--soft)", labelFontSize: 12, titleFontSize: 13, titleFontWeight: 500, gridOpacity: 0.6,
    },
    legend: {labelColor: "var(--ink)", titleColor: "var(--ink)", labelFontSize: 12, symbolSize: 90, labelLimit: 260, title: null, orient: "top", direction: "horizontal", columns: {signal: "containerSize()[0] < 500 ? 1 : 3"}},
    text: {fill: "var(--ink)", fontSize: 12},
};

// The grid of a logarithmic axis: powers of ten stand out.
const decades = {gridOpacity: {condition: {test: "abs(log(datum.value) / LN10 - round(log(datum.value) / LN10)) < 1e-6", value: 0.8}, value: 0.2}};
const kldAxis = {type: "quantitative", title: "mean KLD, nats", scale: {type: "log", nice: false, padding: 14}, axis: {format: NATS, tickCount: 6, ...decades}};
const fewTicks = {tickCount: {expr: "ceil(width / 90)"}};
const kldTip = field => ({field, type: "quantitative", title: "mean KLD", format: ".4~g"});

// The charts whose data are the same rows of the page.
const withData = (rows, charts) => Object.fromEntries(Object.entries(charts).map(([name, chart]) =>
    [name, page => ({data: {values: rows(page)}, ...chart(page)})]));
