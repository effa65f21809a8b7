"""Pages and notebooks."""

import json
import re
from html.parser import HTMLParser

import pytest

import rematic

EVIL = "</script><img src=x onerror=alert(1)>"


class Balanced(HTMLParser):
    """Fails on tags that do not match, and notes all that there are."""

    def __init__(self):
        super().__init__()
        self.open = []
        self.seen = set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        if tag not in ("br", "meta", "link", "circle", "polygon", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("circle", "polygon", "polyline"):
            assert self.open.pop() == tag


def tags(html):
    parser = Balanced()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser.seen


def document(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


@pytest.fixture(scope="module")
def hostile(seed):
    trace = json.loads(seed.to_bytes())
    trace["origin"]["model"] = EVIL
    trace["names"] = [EVIL + name for name in trace["names"]]
    return rematic.Trace.from_bytes(json.dumps(trace).encode())


def test_a_page_says_what_the_plan_says(seed, tmp_path):
    plan = rematic.plan(seed, "1.6GiB", device="h100")
    rematic.report(seed, tmp_path / "page.html", budget="1.6GiB", device="h100")
    page = (tmp_path / "page.html").read_text()
    shown = document(page)
    assert shown["baseline_peak_bytes"] == plan.baseline_peak
    assert shown["chosen"]["peak_bytes"] == plan.peak
    assert shown["chosen"]["recompute_ms"] == plan.recompute_ms
    assert len(shown["curve"]) == 50
    assert {"canvas", "img", "iframe"}.isdisjoint(tags(page))
    # The same input gives the same bytes.
    rematic.report(seed, tmp_path / "again.html", budget="1.6GiB", device="h100")
    assert (tmp_path / "again.html").read_text() == page


def test_a_page_shows_a_given_plan(seed, tmp_path):
    plan = rematic.plan(seed, "1.8GiB", device="h100", planner="greedy")
    rematic.report(seed, tmp_path / "page.html", plan=plan, device="h100")
    shown = document((tmp_path / "page.html").read_text())["chosen"]
    assert (shown["peak_bytes"], shown["budget_bytes"]) == (plan.peak, plan.budget)
    assert len(shown["regions"]) == len(plan.regions)
    other = rematic.Trace.model("gpt2", layers=2)
    with pytest.raises(rematic.PlanError):
        rematic.report(other, tmp_path / "other.html", plan=plan)
    assert not (tmp_path / "other.html").exists()


def test_a_page_that_cannot_be_written(seed, tmp_path):
    with pytest.raises(rematic.RematicError, match="cannot write"):
        rematic.report(seed, tmp_path / "missing" / "page.html")


def test_notebooks_show_small_pictures(seed):
    plan = rematic.plan(seed, "1.6GiB", device="h100")
    curve = rematic.curve(seed, 10, device="h100")
    for thing, words in (
        (seed, ["seed-transformer", "2.50 GiB", "activation"]),
        (plan, ["1.60 GiB", "layers.1", "addmm", "optimal"]),
        (rematic.plan(seed, "70GiB", device="h100"), ["fits as it is"]),
        (curve, ["2.50 GiB", "polyline"]),
    ):
        html = thing._repr_html_()
        assert len(html) < 25_000
        assert all(word in html for word in words), html[:500]
        assert "script" not in tags(html)
    assert curve._repr_html_().count("<circle") == 10


def test_names_are_only_text(hostile, tmp_path):
    for thing in (hostile, rematic.plan(hostile, "1.6GiB"), rematic.curve(hostile, 3)):
        assert {"script", "img"}.isdisjoint(tags(thing._repr_html_()))
    rematic.report(hostile, tmp_path / "page.html", budget="1.6GiB")
    page = (tmp_path / "page.html").read_text()
    assert "<img" not in page
    assert document(page)["model"] == EVIL
