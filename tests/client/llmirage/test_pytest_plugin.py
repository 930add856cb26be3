"""The pytest plugin as a project's tests see it: each test here writes such a project and runs pytest in it."""

import re

import pytest
from pytest_project import INI, Project


def test_the_plugin_is_installed_and_loads_nothing_before_a_fixture_is_used(project: Project) -> None:
    project.tests("""
        import sys
        def test_nothing(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("llmirage")
            heavy = {"numpy", "httpx", "starlette", "yaml", "llmirage_server", "llmirage_client"}
            assert not heavy & set(sys.modules)
    """)
    project.run("--strict-markers", apart=True, passed=1)


def test_each_test_has_a_server_of_its_own_as_its_marker_says(project: Project) -> None:
    (project.folder / "tests/weather.yaml").write_text("rules: [{when: {user: weather}, reply: It rains.}]\n")
    project.tests("""
        pytestmark = pytest.mark.llmirage(model="llama-3.1-8b", tp=2)

        @pytest.mark.llmirage(script=[{"reply": "Yes."}], faults=["status; status=503; times=1"])
        def test_a_script_and_a_fault(llmirage_server):
            assert llmirage_server.models[0] == "meta-llama/Llama-3.1-8B-Instruct"
            with pytest.raises(Exception, match="503"):
                ask(llmirage_server)
            assert said(llmirage_server) == "Yes."
            llmirage_server.expect(2)

        @pytest.mark.llmirage(script="weather.yaml")  # beside this file
        def test_a_file(llmirage_server):
            assert said(llmirage_server, "the weather?") == "It rains."
            llmirage_server.expect(1)

        @pytest.mark.llmirage(ttft=1000, itl=1000, exact_length=True)
        def test_ten_minutes(llmirage_server):
            began_s = time.monotonic()
            assert ask(llmirage_server, max_tokens=600).usage.completion_tokens == 600
            assert llmirage_server.now_s > 599
            assert time.monotonic() - began_s < 20

        @pytest.mark.llmirage(speed=50, ttft=1000, itl=10)
        def test_real_time_where_a_speed_is_asked_for(llmirage_server):
            began_s = time.monotonic()
            ask(llmirage_server, max_tokens=1)
            assert time.monotonic() - began_s >= 0.02

        @pytest.mark.llmirage(port=0)
        def test_a_port(llmirage_server: llmirage.Server):
            assert llmirage_server.base_url.startswith("http://localhost:")
    """)
    project.run("--strict-markers", passed=5)


def test_settings_of_all_tests_and_the_server_of_the_session(project: Project) -> None:
    (project.folder / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='session')\n"
        "def llmirage_settings():\n"
        "    return {'model': 'llama-3.1-8b', 'script': [{'reply': 'Yes.'}]}\n"
    )
    project.tests("""
        def test_first(llmirage_session_server, llmirage_server):
            assert said(llmirage_session_server) == said(llmirage_server) == "Yes."
            assert llmirage_server is not llmirage_session_server

        @pytest.mark.llmirage(script=[{"reply": "No."}])
        def test_second(llmirage_session_server, llmirage_server):
            assert said(llmirage_server) == "No."
            assert "Llama-3.1-8B" in llmirage_server.models[0]
            llmirage_session_server.expect(1)

        @pytest.mark.llmirage(script=[{"reply": "No."}])
        def test_a_marker_that_says_nothing(llmirage_session_server):
            pass
    """)
    output = project.run(passed=2, errors=1)
    assert "llmirage_session_server has the settings that the fixture llmirage_settings returns" in output


def test_a_mistake_in_a_marker_is_one_message(project: Project) -> None:
    project.tests("""
        @pytest.mark.llmirage(gpus="H100")
        def test_a_name(llmirage_server): pass

        @pytest.mark.llmirage("script.yaml")
        def test_no_name(llmirage_server): pass

        @pytest.mark.llmirage(unmatched="explode")
        def test_a_choice(llmirage_server): pass
    """)
    output = project.run(errors=3)
    assert "@pytest.mark.llmirage: gpus: there is no such setting (did you mean 'gpu'?)" in output
    assert "@pytest.mark.llmirage: its settings have names: script=..., model=..., faults=..." in output
    assert "@pytest.mark.llmirage: unmatched must be generate or fail, not 'explode'" in output
    assert "_pytest_plugin.py" not in output


def test_a_failed_test_shows_what_the_server_was_asked_and_what_differs(project: Project) -> None:
    project.tests("""
        @pytest.mark.llmirage(script=[{"reply": "Yes."}])
        def test_it(llmirage_server):
            ask(llmirage_server)
            llmirage_server.expect(1, user="Goodbye")
    """)
    output = project.run(failed=1)
    assert "E           expected: a text with 'Goodbye'\nE           got:      'Hello'" in output
    assert "requests to llmirage_server" in output
    assert "1. POST /v1/chat/completions m Hello -> 200 Yes." in output.partition("requests to llmirage_server")[2]
    assert "def expect(" not in output  # no source of llmirage's own
    assert "def call(" not in output


@pytest.mark.parametrize("way", ["option", "ini", "marker"])
def test_requests_that_nothing_fits_fail_the_test_if_wanted(project: Project, way: str) -> None:
    if way == "ini":
        (project.folder / "pytest.ini").write_text(f"{INI}llmirage_unmatched = fail\n")
    mark = ', unmatched="fail"' if way == "marker" else ""
    project.tests(f"""
        @pytest.mark.llmirage(script=[{{"when": {{"user": "weather"}}, "reply": "Yes."}}]{mark})
        def test_all_fit(llmirage_server):
            ask(llmirage_server, "the weather?")
            llmirage_server.openai().models.list()

        @pytest.mark.llmirage(script=[{{"when": {{"user": "weather"}}, "reply": "Yes."}}]{mark})
        def test_one_does_not(llmirage_server):
            ask(llmirage_server, "the weather?")
            ask(llmirage_server, "the time?")

        @pytest.mark.llmirage({mark.lstrip(", ")})
        def test_without_a_script_none_does(llmirage_server):
            ask(llmirage_server)

        @pytest.mark.llmirage(unmatched="generate")
        def test_unless_this_test_wants_none_of_that(llmirage_server):
            ask(llmirage_server)

        def test_with_the_server_of_the_session(llmirage_session_server):
            ask(llmirage_session_server, "once")
    """)
    options = ["--llmirage-unmatched=fail"] if way == "option" else []
    strict_session = way != "marker"
    output = project.run(*options, passed=2 + (not strict_session), failed=2 + strict_session)
    assert "no rule of the script fits 1 request:" in output
    assert re.search(r"2\. POST /v1/chat/completions m the time\? -> 200", output)


def test_without_the_option_replies_are_generated(project: Project) -> None:
    project.tests("""
        @pytest.mark.llmirage(script=[{"when": {"user": "weather"}, "reply": "Yes."}])
        def test_it(llmirage_server):
            assert said(llmirage_server)
    """)
    project.run(passed=1)


def test_asyncio_anyio_trio_and_the_loop_of_virtual_time(project: Project) -> None:
    project.tests("""
        async def said_async(server):
            async with server.async_openai() as client:
                reply = await client.chat.completions.create(model="m", messages=HELLO)
            return reply.choices[0].message.content

        pytestmark = pytest.mark.llmirage(script=[{"reply": "Yes."}])

        @pytest.mark.asyncio
        async def test_pytest_asyncio(llmirage_server):
            assert await asyncio.gather(*[said_async(llmirage_server) for _ in range(3)]) == ["Yes."] * 3
            llmirage_server.expect(3)

        @pytest.mark.anyio
        @pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
        async def test_anyio(llmirage_server, anyio_backend):
            assert await said_async(llmirage_server) == "Yes."

        def test_virtual_time(llmirage_server):
            assert llmirage.run_in_virtual_time(said_async(llmirage_server)) == "Yes."
    """)
    project.run("-W", "error", passed=4)


def test_workers_of_xdist_have_servers_of_their_own(project: Project) -> None:
    project.tests("""
        @pytest.mark.parametrize("number", range(2))
        @pytest.mark.llmirage(port=0)
        def test_it(llmirage_server, llmirage_session_server, number):
            import httpx
            body = {"model": "m", "messages": [{"role": "user", "content": str(number)}]}
            for server in (llmirage_server, llmirage_session_server):
                with httpx.Client(transport=server.transport, timeout=60) as client:
                    client.post(server.base_url + "/chat/completions", json=body)
            llmirage_server.expect(1, user=str(number))
    """)
    project.run("-n", "2", apart=True, passed=2)


def test_no_thread_socket_or_file_stays(project: Project) -> None:
    (project.folder / "conftest.py").write_text(
        "import gc, os, threading\n"
        "left = []\n"
        "def pytest_runtest_logfinish(nodeid, location):\n"
        "    gc.collect()\n"
        "    left.append((threading.active_count(), len(os.listdir('/proc/self/fd'))))\n"
        "def pytest_unconfigure():\n"
        "    gc.collect()\n"
        "    left.append((threading.active_count(), len(os.listdir('/proc/self/fd'))))\n"
        "    print('left', left)\n"
    )
    project.tests("""
        @pytest.mark.parametrize("number", range(3))
        @pytest.mark.llmirage(port=0)
        def test_it(llmirage_server, number):
            ask(llmirage_server)
            import httpx
            httpx.post(llmirage_server.base_url + "/chat/completions", json={"model": "m", "messages": HELLO})

        def test_of_the_session(llmirage_session_server):
            ask(llmirage_session_server)
    """)
    output = project.run("-s", "-W", "error", apart=True, passed=4)
    counts = re.search(r"left (\[.*\])", output)
    left = [tuple(map(int, pair)) for pair in re.findall(r"\((\d+), (\d+)\)", counts[1])]
    assert left[1] == left[3], left  # after the first test libraries keep what they have opened
    assert left[-1][0] == 1
    assert left[-1][1] <= left[1][1]
    assert [path.name for path in (project.folder / "tests").iterdir() if path.name != "__pycache__"] == ["test_it.py"]


def test_the_example_of_the_page_passes(project: Project) -> None:
    project.shown("test_agent.py")
    project.run("-W", "error", passed=1)
