"""The command line of settings: flags under headings, --set for the rest, commands whose work is imported when they run."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from llmirage_shared.settings import About, ConfigError, InputRefused, at_call, became, did_you_mean, settings_of

OPTIONS = "Options"  # the heading of options that need no other
_LONG_DEFAULT = 32  # characters: --help-all leaves out longer ones, which docs/settings.md has
FEW = 20  # options that --help shows all
_CLOSE = 0.75  # likeness of flags of which one is a misspelling of the other
ALL = "llmirage.help_all"  # in a context's `meta`: the help shows all options
_BOTH_FLAGS = re.compile(r"--([\w-]+) / --no-\1\b")
_SENTENCE_END = re.compile(r"; |\. ")
_PROBLEMS, _SET = "llmirage.problems", "llmirage.set"  # in a context's `meta`
_UNITS = {"_gb_per_s": "GB/S", "_per_s": "R", "_ms": "MS", "_s": "S", "_gib": "GIB"}  # by the end of a field's name


class SettingOption(click.Option):
    """A setting on the command line: by its flag, which accepts all names and shows the usual ones, or by --set.

    former: flags that it does not have, as --set is the way to give it; each with the value it stands for, if it takes none.
    checked: validate values against the setting's limits here; else the configuration does.
    environment: prefix of the environment variable for the flag; empty: none.
    """

    def __init__(self, about: About, *, checked: bool = True, environment: str = "") -> None:
        self.about = about
        self.former: dict[str, str] = {}
        self._checked = checked
        boolean = bool in about.kinds
        unset = about.unset or (about.needs and not about.switch) or about.required or not checked
        default: dict[str, Any] = {"default": None if unset else about.default}
        super().__init__(
            [*_flags(about), about.name],
            type=click.BOOL if boolean else click.UNPROCESSED,
            is_flag=boolean or None,
            multiple=about.repeated,
            required=about.required,
            **(default if boolean or not unset else {}),
            envvar=f"{environment}_{about.spelled or about.name}".upper().replace("-", "_") if environment else None,
            metavar=None if boolean else about.metavar or _metavar(about),
            help=about.help + remarks(about),
        )

    def keep_flags(self, command: str) -> None:
        """Keep the flags that a command of many settings has for this one."""
        self.hidden = not self.about.has_flag(command)
        if self.hidden and not self.about.carried:
            kept = {f"--{no}{name.replace('_', '-')}" for name in self.about.hidden for no in ("", "no-")}
            values = ("true", "false") if bool in self.about.kinds else ("", "")
            for flags, value in zip((self.opts, self.secondary_opts), values, strict=True):
                self.former |= {flag: value for flag in flags if flag not in kept}
            self.opts = [flag for flag in self.opts if flag in kept]
            self.secondary_opts = [flag for flag in self.secondary_opts if flag in kept]

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        if self.opts:
            multiple = self.multiple
            self.multiple = multiple or not self.is_flag  # all values: `joined` ones become one
            super().add_to_parser(parser, ctx)
            self.multiple = multiple

    def get_error_hint(self, ctx: click.Context | None) -> str:
        if self.opts and (ctx is None or self.name not in ctx.meta.get(_SET, {})):
            return super().get_error_hint(ctx)
        return f"'--set {self.name}'"

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        name = str(self.name)
        given = ctx.meta.get(_SET, {}).get(name)
        if given is not None:
            if name in opts:
                problem = f"{name} is given twice: by --set and by a flag ({self.about.as_option})"
                _keep(ctx, click.BadParameter(problem, ctx, param_hint="'--set'"))
            opts = {**opts, name: given}
        if not self.multiple and isinstance(values := opts.get(name), list | tuple):
            opts = {**opts, name: ",".join(values) if self.about.joined else values[-1]}
        return super().consume_value(ctx, opts)

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        if self.name and ctx.get_parameter_source(self.name) is ParameterSource.DEFAULT_MAP:
            return value  # of --config, which has read it
        if bool in self.about.kinds or (value is None and not self.multiple):
            return super().type_cast_value(ctx, value)
        try:
            given = tuple(value or ()) if self.multiple else value
            if isinstance(given, str | tuple):
                given = self.about.parse(given)
            problems = list(self.about.problems(given)) if self._checked or _from_environment(ctx, self) else []
        except ValueError as error:
            problems = [str(error)]
        if problems:
            raise click.BadParameter("; ".join(problems), ctx=ctx, param=self)
        return given

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Keep a bad value for `SettingsCommand`, so that all of them are reported at once."""
        try:
            return super().process_value(ctx, value)
        except click.BadParameter as error:
            if _from_environment(ctx, self):
                error.param_hint = str(self.envvar)
            _keep(ctx, error)
            return None

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        names = self.opts, self.secondary_opts
        few = not _is_long(ctx)
        unseen = self.about.hidden if few else (*self.about.aliases, *self.about.hidden)
        hidden = {f"--{name.replace('_', '-')}" for name in unseen}
        self.opts = [flag for flag in self.opts if flag not in hidden]
        self.secondary_opts = self.secondary_opts[:1]
        try:
            record = super().get_help_record(ctx)
        finally:
            self.opts, self.secondary_opts = names
        if record is None or few:
            return record
        first = _SENTENCE_END.split(self.about.help, maxsplit=1)[0].rstrip(".")
        default = remarks(self.about, limits=False)
        if shows_all(ctx) and len(default) > _LONG_DEFAULT:
            default = ""
        return _BOTH_FLAGS.sub(r"--[no-]\1", record[0]), f"{first}.{default}"

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        if self.metavar in ("FILE", "DIR"):
            names = completed(self.about.names() if self.about.names else (), incomplete)
            return names or [_completion(incomplete, self.metavar.lower())]
        return completed(self.about.names() if self.about.names else self.about.choices, incomplete)


class SetOption(click.Option):
    """`--set KEY=VALUE`, which gives any setting of the command by name."""

    def __init__(self) -> None:
        help = "Give any setting by name; may be repeated."
        super().__init__(
            ["--set"], multiple=True, is_eager=True, expose_value=False, callback=self._read, metavar="KEY=VALUE", help=help
        )

    def _read(self, ctx: click.Context, param: click.Parameter, texts: Sequence[str]) -> None:
        given = ctx.meta.setdefault(_SET, {})
        for text in texts:
            key, equals, value = text.partition("=")
            option = _setting(ctx, key)
            if option is not None and value.strip():
                given.setdefault(option.name, []).append(value.strip())
                continue
            problem = f"{text!r} is not KEY=VALUE" if option or not equals else _unknown_key(ctx, key)
            _keep(ctx, click.BadParameter(problem, ctx, self))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        key, equals, begun = incomplete.partition("=")
        if not equals:
            return [_completion(f"{name}=") for name in _keys(ctx) if name.startswith(_as_key(key))]
        option = _setting(ctx, key)
        found = [] if option is None else option.shell_complete(ctx, begun)
        return [_completion(f"{key}={item.value}") for item in found]


class ConfigOption(click.Option):
    """`--config FILE`: settings of the command by name, in YAML. What the command line and the environment give wins."""

    def __init__(self) -> None:
        help = "YAML file of settings by name, such as `max_num_seqs: 64`; the command line wins."
        super().__init__(["--config"], is_eager=True, expose_value=False, callback=self._read, metavar="FILE", help=help)

    def _read(self, ctx: click.Context, param: click.Parameter, path: str | None) -> None:
        if path is None or ctx.resilient_parsing:
            return
        from llmirage_shared.yaml_lines import read_mapping  # start-up does without YAML

        values: dict[str, Any] = {}
        problems: list[str] = []
        try:
            for entry in read_mapping(path, "a file of settings"):
                option = _setting(ctx, entry.key)
                if option is None:
                    problems.append(f"{path}:{entry.line}: {_unknown_key(ctx, entry.key)}")
                    continue
                try:
                    if option.name in values:
                        raise ValueError("is given twice")
                    if entry.node.value is None:
                        raise ValueError("must have a value")
                    values[str(option.name)] = option.about.read_value(entry.node.value)
                except ValueError as error:
                    problems.append(f"{path}:{entry.line}: {entry.key}: {error}")
        except ConfigError as error:
            problems += error.problems
        for problem in problems:
            _keep(ctx, click.BadParameter(problem, ctx, self))
        ctx.default_map = values

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        return [_completion(incomplete, "file")]


def _as_key(text: str) -> str:
    return text.strip().replace("-", "_").lower()


def _keys(ctx: click.Context) -> Mapping[str, SettingOption]:
    """Return the settings of the command by all their names."""
    assert isinstance(ctx.command, SettingsCommand)
    return {key: option for option in ctx.command.settings for key in option.about.keys}


def _setting(ctx: click.Context, key: str) -> SettingOption | None:
    return _keys(ctx).get(_as_key(key))


def _unknown_key(ctx: click.Context, key: str) -> str:
    assert isinstance(ctx.command, SettingsCommand)
    if _as_key(key).partition(".")[0] in ctx.command.blocks:
        return f"{key.strip()} belongs in a cluster file (--cluster FILE)"
    return f"there is no setting {key.strip()!r}{did_you_mean(_as_key(key), _keys(ctx))}"


def _keep(ctx: click.Context, problem: click.BadParameter) -> None:
    """Keep a problem until all are known."""
    ctx.meta.setdefault(_PROBLEMS, []).append(problem)


def _completion(value: str, kind: str = "plain") -> Any:
    from click.shell_completion import CompletionItem  # here: only a shell that completes needs it

    return CompletionItem(value, type=kind)


def completed(names: Iterable[str], incomplete: str) -> list[Any]:
    """Return the names with that beginning, for a shell; of several between commas the last one is completed."""
    before, comma, last = incomplete.rpartition(",")
    return [_completion(before + comma + name) for name in names if name.startswith(last)]


def shows_all(ctx: click.Context) -> bool:
    """Return whether the help of a command shows all of its options, as it does for commands with few."""
    return not _is_long(ctx) or bool(ctx.meta.get(ALL))


def _is_long(ctx: click.Context) -> bool:
    """Return whether a command has more settings than each could have a flag."""
    return isinstance(ctx.command, SettingsCommand) and ctx.command.has_long_tail


def _help_all(shown: bool) -> click.Option:
    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            ctx.meta[ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    help = "Show all options and exit."
    return click.Option(
        ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=show, help=help, hidden=not shown
    )


def _from_environment(ctx: click.Context, param: click.Parameter) -> bool:
    return param.name is not None and ctx.get_parameter_source(param.name) is ParameterSource.ENVIRONMENT


def environment_note() -> str:
    """Return the end of an error message: the variables that options were taken from; empty if none."""
    ctx = click.get_current_context(silent=True)
    names = [] if ctx is None else [str(param.envvar) for param in ctx.command.params if _from_environment(ctx, param)]
    return f"Options from the environment: {', '.join(names)}" if names else ""


def _flags(about: About) -> list[str]:
    main = about.spelled or about.name.replace("_", "-")
    names = [about.short] if about.short else []
    names += [main, *(alias.replace("_", "-") for alias in (*about.aliases, *about.hidden))]
    pair = bool in about.kinds and not about.switch
    return [("-" if len(name) == 1 else "--") + name + (f"/--no-{name}" if pair else "") for name in names]


def _metavar(about: About) -> str:
    """Return its choices, or its unit: that of the field's name, unless users have another."""
    if about.choices:
        return f"[{'|'.join(about.choices)}]"
    unit = {1000.0: "MS", 100.0: "PERCENT"}.get(about.per) or ("SHARE" if about.most == 1 else None)
    unit = unit or next((unit for end, unit in _UNITS.items() if (about.option or about.field).endswith(end)), None)
    unit = unit or ("NAME" if str in about.kinds or about.repeated else "N")
    return f"{unit}[,{unit}...]" if about.several else unit


def remarks(about: About, limits: bool = True) -> str:
    """Return the default of a setting and its limits, as the end of the help."""
    default, text = about.default, about.unset
    if not text and not about.required and not about.switch and not about.needs and default not in (None, "", (), {}):
        text = ("on" if default else "off") if isinstance(default, bool) else _text(default)
    found = [f"default: {text}"] if text else []
    if about.most is not None and limits:
        found.append(about.range if about.least is None else f"{about.least:g} to {about.most:,.10g}")
    return f"  [{'; '.join(found)}]" if found else ""


def _text(default: Any) -> str:
    return (
        ", ".join(default) if isinstance(default, tuple) else f"{default:g}" if isinstance(default, float) else str(default)
    )


def options(
    kind: type[Any],
    *names: str,
    but: Sequence[str] = (),
    checked: bool = True,
    order: Sequence[str] = (),
    environment: str = "",
) -> list[click.Parameter]:
    """Return the flags of a class of settings: those named, or all but some.

    order: of the headings; else that of the fields.
    environment: prefix of the environment variables for the flags: "LLMIRAGE" makes LLMIRAGE_PORT of --port.
    """
    found = settings_of(kind)
    chosen = [found[name] for name in names or found if name not in but]
    if order:
        chosen.sort(key=lambda about: order.index(about.group))
    return [SettingOption(about, checked=checked, environment=environment) for about in chosen]


def json_option(help: str, group: str = OPTIONS, usual: bool = False) -> SettingOption:
    """Return the flag --json of a command that has no other output to choose."""
    about = About(group, help, name="json", field="json", usual=usual, switch=True, default=False, kinds=(bool,))
    return SettingOption(about)


class SettingsCommand(click.Command):
    """A command whose help lists options under their headings, and that reports all bad values at once.

    With at most FEW settings each has a flag. With more, those have one that are declared to have, --help shows the usual
    ones, --help-all shows all, and --set gives the others.

    lists: flags whose numbers may also stand between spaces, as in `--parallel 1 2 4`.
    bare: flags that may stand without their number, with the number that counts then.
    rest: the heading of --help.
    elsewhere: flags of other tools, each with what to do instead, before former ones; "*": all that resemble none here.
    examples: command lines, for the help.
    blocks: keys of files that have further keys, and are no settings.
    settings: its settings, those without a flag included.
    """

    def __init__(
        self,
        *args: Any,
        lists: Sequence[str] = (),
        bare: Mapping[str, str] | None = None,
        rest: str = OPTIONS,
        elsewhere: Mapping[str, str] | None = None,
        examples: Sequence[str] = (),
        blocks: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.blocks = blocks
        self.examples = examples
        self._lists = lists
        self._bare = bare or {}
        self._rest = rest
        self.elsewhere = elsewhere or {}
        self.settings = [param for param in self.params if isinstance(param, SettingOption)]
        self.has_long_tail = len(self.settings) > FEW
        if self.has_long_tail:
            for option in self.settings:
                option.keep_flags(str(self.name))
            self.params += [SetOption(), ConfigOption()]
        self.params.append(_help_all(self.has_long_tail))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            rest = super().parse_args(ctx, join_lists(with_numbers(args, self._bare), self._lists))
        except click.NoSuchOption as error:
            raise self._unknown_option(error, args, ctx) from None
        self._warn_of_unknown_variables()
        problems: list[click.BadParameter] = ctx.meta.pop(_PROBLEMS, [])
        if ctx.resilient_parsing:  # a shell completes what is not yet whole
            return rest
        if len(problems) == 1:
            raise problems[0]
        if problems:
            raise click.UsageError("\n".join(problem.format_message() for problem in problems), ctx)
        return rest

    def _unknown_option(self, error: click.NoSuchOption, args: Sequence[str], ctx: click.Context) -> click.UsageError:
        """Return the refusal of a flag: with all of `args` that have other names here, or the nearest name."""
        former = {flag: option for option in self.settings for flag in option.former}
        if error.option_name in {*former, *self.elsewhere}:
            said = []
            for word, value in zip(args, [*args[1:], ""], strict=True):
                flag = word.partition("=")[0]
                if flag in self.elsewhere:
                    said.append(f"no option {flag}: {self.elsewhere[flag]}")
                elif flag in former:
                    said.append(_now_set(former[flag], word, value))
            return click.UsageError("\n".join(dict.fromkeys(said)), ctx)
        from difflib import get_close_matches

        hint = became(error.option_name, [flag for param in self.params for flag in (*param.opts, *former)])
        possibilities = error.possibilities or []
        near = get_close_matches(error.option_name, [*possibilities, *former], n=1, cutoff=_CLOSE)
        if not hint and near and near[0] in former:
            hint, possibilities = f" (did you mean --set {former[near[0]].name}=...?)", []
        elif not hint and not near and (rest := self.elsewhere.get("*")):
            hint, possibilities = f": {rest}", []
        message = error.message.removesuffix(".") + hint if hint else error.message
        return click.NoSuchOption(error.option_name, message, possibilities, ctx)

    def _warn_of_unknown_variables(self) -> None:
        """Report environment variables that nearly match the name of one: a misspelled one has no effect."""
        known = {str(param.envvar) for param in self.params if param.envvar}
        for prefix in {name.partition("_")[0] + "_" for name in known}:
            for name in sorted(name for name in os.environ if name.startswith(prefix) and name not in known):
                if hint := did_you_mean(name, known):
                    click.echo(f"{self.name}: the environment variable {name} stands for no option{hint}", err=True)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"{'':>{formatter.current_indent}}{line}\n" for line in self.examples))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        if not shows_all(ctx):
            count = sum(not option.hidden for option in self.settings)
            formatter.write(f"\nAll {count} options: {ctx.command_path} --help-all\n")
        elif self.has_long_tail:
            formatter.write(f"\nAll {len(self.settings)} settings, for --set: llmirage catalog settings, docs/settings.md\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if not shows_all(ctx) and not (isinstance(param, SettingOption) and param.about.is_usual(str(self.name))):
                continue
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                group = param.about.group if isinstance(param, SettingOption) else self._rest
                groups.setdefault(group, []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records, col_max=36 if shows_all(ctx) else 24)


class SettingsGroup(SettingsCommand, click.Group):
    """A command with options of its own, and commands below it."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def command(name: str, runner: str, params: Iterable[click.Parameter], help: str, **details: Any) -> SettingsCommand:
    """Return a command with its arguments and options.

    runner: the function that does the work, as `module:function`.
    details: of SettingsCommand.
    """
    look = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
    return SettingsCommand(name, callback=lazily(runner), params=list(params), help=help, context_settings=look, **details)


def argument(
    name: str, metavar: str | None = None, *, required: bool = True, many: bool = False, **details: Any
) -> click.Argument:
    """Return a word of the command line without a flag.

    details: choices, a default, or names: a function that lists possible names.
    """
    names = details.pop("names", None)
    if choices := details.pop("choices", None):
        details["type"] = click.Choice(choices)
    needed = required and "default" not in details
    return click.Argument(
        [name],
        metavar=metavar,
        required=needed,
        nargs=-1 if many else 1,
        shell_complete=None if names is None else _or_file(names),
        **details,
    )


def _or_file(names: Callable[[], Iterable[str]]) -> Callable[..., list[Any]]:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        return completed(names(), incomplete) or [_completion(incomplete, "file")]

    return complete


def renamed(name: str, now: str, **values: str) -> click.Option:
    """Return an obsolete flag, which is refused with a message naming its replacement.

    values: each with its replacement.
    """

    def refuse(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(f"--{name} {value} is now --{now} {values.get(value, value)}", ctx)

    return click.Option([f"--{name}"], hidden=True, expose_value=False, callback=refuse)


def lazily(place: str) -> Callable[..., Any]:
    """Return the function `module:function` of a command, imported when called so that help and refusals do not need it.

    It gets the given parameters by name. A ConfigError becomes a usage error, InputRefused its message alone; they end with
    exit status 2, unless the latter has another one.
    """
    work = at_call(place)

    def call(**given: Any) -> Any:
        try:
            return work(**given)
        except InputRefused as error:
            click.secho(f"llmirage {error.command}: {error}" if error.command else str(error), fg="red", err=True)
            raise SystemExit(error.status) from None
        except ConfigError as error:
            raise click.UsageError("\n".join(error.problems)) from None

    return call


def _now_set(option: SettingOption, word: str, follower: str) -> str:
    """Return a message: how to give what a former flag gave. follower: the word after it."""
    flag, equals, value = word.partition("=")
    if not equals:
        value = option.former[flag] or (follower if follower and not follower.startswith("-") else "...")
    return f"{flag} is now --set {shlex.quote(f'{option.name}={value}')}"


def with_numbers(words: Sequence[str], bare: Mapping[str, str]) -> list[str]:
    """Return the words of a command line, with a number for each flag of `bare` that stands without one."""
    nexts = [*words, ""][1:]
    return [
        f"{word}={bare[word]}" if word in bare and not follower[:1].isdigit() else word
        for word, follower in zip(words, nexts, strict=True)
    ]


def join_lists(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return the words of a command line with `--parallel 1 2 4` as `--parallel 1,2,4`."""
    joined: list[str] = []
    flag = None
    for word in words:
        if flag is not None and word and not word.strip("0123456789.,e+"):
            if joined[-1] == flag:
                joined.append(word)
            else:
                joined[-1] += f",{word}"
        else:
            flag = word if word in flags else None
            joined.append(word)
    return joined
