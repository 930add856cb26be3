"""Routers of the user's own: what they are given, and what is answered when they do not fit."""

from pathlib import Path

import numpy as np
import pytest
from step_models import ConstantStep

from llmirage_server.cluster.cluster import Cluster, EngineLimits
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import Router, RouterError, make_router

MODULE = """
import math
from llmirage_server.cluster.routers import Router, make_router

def most_cached(request, instances):
    return max(range(len(instances)), key=lambda i: instances[i].cached_tokens)

def by_facts(request, instances):
    seen.append((request.prompt.tolist(), request.session_key, request.model, request.max_tokens, request.priority))
    seen.append([(i.index, i.running, i.waiting, i.kv_used_tokens, i.kv_total_tokens, i.cached_tokens) for i in instances])
    return request.prompt[0] % 2  # a numpy integer

seen = []

class Sticky(Router):
    \"\"\"Always the same, by the seed.\"\"\"
    def __init__(self, seed):
        self.seed = seed
        self.forgotten = []
    def choose(self, request, instances):
        return self.seed % len(instances)
    def forget(self, index):
        self.forgotten.append(index)
        if index == 9:
            raise KeyError(index)

def made(seed):
    return make_router("random", seed)

class Shelf:
    @staticmethod
    def first(request, instances, *, why="none"):
        return 0

def writes(request, instances):
    request.prompt[0] = 7
    return 0

def peeks(request, instances):
    return len(request.output)

def raises(request, instances): return 1 // 0
def silent(request, instances): raise RuntimeError
def nothing(request, instances): pass
def text(request, instances): return "0"
def real(request, instances): return 0.0
def truth(request, instances): return True
def beyond(request, instances): return len(instances)
def negative(request, instances): return -1

def one_of_three(a, b, c): return 0
def no_argument(): return 0
def bad_factory(seed): return 1 / 0
def wrong_factory(seed): return {"round": "robin"}
number = 5
"""


MUST = "it must return an int, the position of one of the instances"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the module in it."""
    (tmp_path / "own_routers.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "broken_router.py").write_text("def f(:\n", encoding="utf-8")
    (tmp_path / "needy_router.py").write_text("import not_there_at_all\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", __import__("sys").path.copy())
    for name in ("own_routers", "broken_router", "needy_router"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    return tmp_path


def instances(n: int = 3) -> list[Instance]:
    return [Instance(i, ConstantStep(1.0), EngineLimits(kv_tokens=1000)) for i in range(n)]


def request(*prompt: int, output: int = 5) -> Request:
    return Request(1, np.array(prompt or (1, 2, 3), dtype=np.int32), np.zeros(output, dtype=np.int32))


@pytest.mark.usefixtures("folder")
def test_a_function_sees_the_request_and_the_instances_as_they_are() -> None:
    router = make_router("own_routers:by_facts")
    all_instances = instances(2)
    all_instances[1].submit(request(4, 5, 6, 7), 0.0)
    asking = request(5, 6)
    asking.session_key, asking.model, asking.max_tokens, asking.priority = "s", "m", 80, 3
    assert router.choose(asking, all_instances) == 1
    import own_routers  # type: ignore[import-not-found]

    assert own_routers.seen == [([5, 6], "s", "m", 80, 3), [(0, 0, 0, 0, 1000, 0), (1, 0, 1, 0, 1000, 0)]]


@pytest.mark.usefixtures("folder")
def test_a_function_routes_a_cluster_by_what_is_cached() -> None:
    all_instances = instances()
    first = request(*range(50))
    all_instances[2].submit(first, 0.0)
    while first.produced < 5:
        all_instances[2].advance()
    cluster = Cluster(all_instances, make_router("own_routers:most_cached"))
    follower = request(*range(60))
    cluster.submit(follower, 100.0)
    cluster.advance(200.0)
    assert (follower.instance, follower.cached_tokens) == (2, 50)


@pytest.mark.usefixtures("folder")
def test_a_class_is_made_with_the_seed_and_told_what_to_forget() -> None:
    router = make_router("own_routers:Sticky", 5)
    assert isinstance(router, Router)
    assert [router.choose(request(), instances(n)) for n in (2, 3)] == [1, 2]
    router.forget(4)
    with pytest.raises(RouterError, match=r"^router 'own_routers:Sticky' raised KeyError: 9 in forget$"):
        router.forget(9)


@pytest.mark.usefixtures("folder")
def test_a_factory_may_return_a_router_that_is_built_in() -> None:
    def drawn(name: str) -> list[int]:
        router = make_router(name, 7)
        return [router.choose(request(), instances(4)) for _ in range(20)]

    assert drawn("own_routers:made") == drawn("random")


@pytest.mark.usefixtures("folder")
def test_names_inside_classes_and_optional_arguments_are_fine() -> None:
    assert make_router("own_routers:Shelf.first").choose(request(), instances()) == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "router 'own_routers:raises' raised ZeroDivisionError: integer division or modulo by zero"),
        ("silent", "router 'own_routers:silent' raised RuntimeError"),
        ("nothing", "router 'own_routers:nothing' returned None of type NoneType: " + MUST),
        ("text", "router 'own_routers:text' returned '0' of type str: " + MUST),
        ("real", "router 'own_routers:real' returned 0.0 of type float: " + MUST),
        ("truth", "router 'own_routers:truth' returned True of type bool: " + MUST),
        ("beyond", "router 'own_routers:beyond' returned 3: there are 3 instances to choose from, positions 0 to 2"),
        ("negative", "router 'own_routers:negative' returned -1: there are 3 instances to choose from, positions 0 to 2"),
        ("writes", "router 'own_routers:writes' raised ValueError: assignment destination is read-only"),
        ("peeks", "router 'own_routers:peeks' raised AttributeError: 'RequestView' object has no attribute 'output'"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_goes_wrong_while_choosing_is_never_passed_over(name: str, said: str) -> None:
    router = make_router(f"own_routers:{name}")
    asking = request()
    with pytest.raises(RouterError) as failure:
        router.choose(asking, instances())
    assert str(failure.value) == said
    assert asking.prompt.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own_routers:", "router 'own_routers:': write it as module:name, like my_routers:mine"),
        (":pick", "router ':pick': write it as module:name, like my_routers:mine"),
        (
            "no_such_module:pick",
            "router 'no_such_module:pick': cannot import 'no_such_module': ModuleNotFoundError: "
            "No module named 'no_such_module'",
        ),
        (
            "needy_router:f",
            "router 'needy_router:f': cannot import 'needy_router': ModuleNotFoundError: No module named 'not_there_at_all'",
        ),
        (
            "own_routers:most_cahced",
            "router 'own_routers:most_cahced': 'own_routers' has no 'most_cahced' (did you mean 'most_cached'?)",
        ),
        ("own_routers:zzzzzz", "router 'own_routers:zzzzzz': 'own_routers' has no 'zzzzzz'"),
        ("own_routers:number", "router 'own_routers:number': it is an int, not something that can be called"),
        (
            "own_routers:one_of_three",
            "router 'own_routers:one_of_three': it must take two arguments, the request and the instances, or one, the seed"
            "; it takes 3",
        ),
        (
            "own_routers:no_argument",
            "router 'own_routers:no_argument': it must take two arguments, the request and the instances, or one, the seed; "
            "it takes 0",
        ),
        (
            "own_routers:bad_factory",
            "router 'own_routers:bad_factory': making it with the seed failed: ZeroDivisionError: division by zero",
        ),
        (
            "own_routers:wrong_factory",
            "router 'own_routers:wrong_factory': a factory of one argument, the seed, must return an "
            "llmirage.Router, not a dict; a function that chooses takes two, the request and the instances",
        ),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_does_not_fit_is_refused_at_once_in_one_line(name: str, said: str) -> None:
    with pytest.raises(ValueError, match="router") as refusal:
        make_router(name)
    assert str(refusal.value) == said


@pytest.mark.usefixtures("folder")
def test_a_module_with_a_syntax_error_is_refused_with_its_line() -> None:
    with pytest.raises(ValueError, match=r"cannot import 'broken_router': SyntaxError: .*\(broken_router.py, line 1\)"):
        make_router("broken_router:f")


def test_the_routers_in_the_documentation_work_as_they_are(folder: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "routers.md").read_text(encoding="utf-8")
    blocks = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    assert len(blocks) == 2
    (folder / "documented_routers.py").write_text("\n".join(blocks), encoding="utf-8")
    all_instances = instances()
    for i in range(5):
        all_instances[0].submit(request(i, output=9), 0.0)
    pick = make_router("documented_routers:pick")
    assert pick.choose(request(), all_instances) == 1
    canary = make_router("documented_routers:Canary", 7)
    places = [canary.choose(request(), all_instances) for _ in range(300)]
    assert 10 <= places.count(2) <= 60
    assert set(places) == {0, 1, 2}


def test_a_file_in_the_working_directory_hides_no_installed_module(folder: Path) -> None:
    (folder / "numpy.py").write_text("def pick(request, instances): return 0\n", encoding="utf-8")
    with pytest.raises(ValueError, match="'numpy' has no 'pick'"):
        make_router("numpy:pick")
