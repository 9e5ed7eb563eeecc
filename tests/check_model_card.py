#!/usr/bin/env python3
"""Checks that huggingface_hub finds every model and metric of a report in its model card.

    kl report *.kls --model-card > card.md
    kl report *.kls --json report.json
    pip install huggingface_hub
    tests/check_model_card.py card.md report.json

The card is read, and read once more after huggingface_hub has written it, which joins results of
the same task and data set. No access to the Hub is needed.
"""
import json
import sys

from huggingface_hub import ModelCard


def expected(report):
    """Each model's metrics, by type and label."""
    metrics = {}
    for model in report["models"]:
        if model["is_noise_floor"] or model["kld"] is None:
            continue
        quantile = next(q for q in model["kld"]["quantiles"] if q["p"] == 0.99)
        for kind, name, value in [
            ("kl_divergence", "Mean KL divergence (nats)", model["kld"]["mean"]["value"]),
            ("kl_divergence", "99 % quantile of the KL divergence (nats)", quantile["value"]),
            ("top_token_agreement", "Same top token", model["agreement"]["ref_top1"]["value"]),
            ("perplexity_ratio", "Perplexity ratio",
             model["perplexity"] and model["perplexity"]["ratio"]["value"]),
        ]:
            if value is not None:
                metrics[kind, f"{name}, {model['label']}"] = value
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


def main():
    with open(sys.argv[1], encoding="utf-8", newline="") as f:
        card = ModelCard(f.read())
    with open(sys.argv[2], encoding="utf-8") as f:
        report = json.load(f)
    n = check(card, report, "as written by kl")
    check(ModelCard(str(card)), report, "as written again by huggingface_hub")
    print(f"{n} metrics found")


main()
