#!/usr/bin/env python3
"""Checks that huggingface_hub finds every model and metric of a report in its model card.

    kl report *@ref.kls --model-card > card.md
    kl report *@ref.kls --json report.json
    kl report *@other.kls --model-card > other.md
    pip install huggingface_hub
    tests/check_model_card.py card.md report.json other.md

The card is read, and read once more after huggingface_hub has written it, which joins results of
the same task and data set: those of the other card, on another reference, must stay apart. The name of
each metric states its unit and which way is better. No access to the Hub is needed.
"""
import json
import sys

from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

LOWER, SHARE = "nats, lower is better", "share, higher is better"


def expected(report):
    """Each model's metrics, by type and name."""
    metrics = {}
    for model in report["models"]:
        if model["is_noise_floor"] or model["kld"] is None:
            continue
        quantile = next(q for q in model["kld"]["quantiles"] if q["p"] == 0.99)
        perplexity, acceptance = model["perplexity"], model.get("acceptance")
        identical = model.get("identical_output")
        for kind, name, unit, value in [
            ("kl_divergence", "Mean KL divergence", LOWER, model["kld"]["mean"]["value"]),
            ("kl_divergence", "99 % quantile of the KL divergence", LOWER, quantile["value"]),
            ("top_token_agreement", "Same top token", SHARE, model["agreement"]["ref_top1"]["value"]),
            ("perplexity_ratio", "Perplexity ratio", "nearer to 1 is better",
             perplexity and perplexity["ratio"]["value"]),
            ("acceptance", "Accepted of drafted tokens", SHARE, acceptance and acceptance["mean"]["value"]),
            ("identical_output", "Greedy answers that stay the same", SHARE,
             identical and identical["same_to_the_end"] and identical["same_to_the_end"]["value"]),
        ]:
            if value is not None:
                assert unit != SHARE or 0 <= value <= 1, (name, value)
                metrics[kind, f"{name} ({unit}), {model['label']}"] = value
    return metrics


def check(card, report, when):
    model = report["reference"]["model"] or {}
    name = model.get("name") or model.get("path") or "model"
    assert card.data.model_name == name, (when, card.data.model_name, name)
    found = {}
    for result in card.data.eval_results:
        assert (result.task_type, result.dataset_type) == ("text-generation", "text"), when
        assert result.dataset_name, when
        assert (result.metric_type, result.metric_name) not in found, (when, result.metric_name)
        assert isinstance(result.metric_value, (int, float)), (when, result.metric_value)
        found[result.metric_type, result.metric_name] = result.metric_value
    assert found == expected(report), (when, found, expected(report))
    assert "| model |" in card.text, when
    return len(found)


def check_apart(card, other):
    """Results of two references in one card are still all there once it is written again."""
    results = card.data.eval_results + other.data.eval_results
    index = eval_results_to_model_index(card.data.model_name, results)
    _, again = model_index_to_eval_results(index)
    assert again == results, "results of two references were merged"
    for i, result in enumerate(results):
        # `metadata_update` replaces the value of what is equal but for it.
        same = [other for other in results[:i] if other.is_equal_except_value(result)]
        assert not same, (result, same)


def read(path):
    with open(path, encoding="utf-8", newline="") as f:
        return ModelCard(f.read())


def main():
    card, other = read(sys.argv[1]), read(sys.argv[3])
    with open(sys.argv[2], encoding="utf-8") as f:
        report = json.load(f)
    n = check(card, report, "as written by kl")
    check(ModelCard(str(card)), report, "as written again by huggingface_hub")
    check_apart(card, other)
    print(f"{n} metrics found")


main()
