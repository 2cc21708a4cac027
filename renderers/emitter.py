"""The one loop that writes conversations: a whole one, or what new messages add to one."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mintjax.renderers.errors import RenderError
from mintjax.renderers.format import Format, Tools, calls_tools, stop_tokens
from mintjax.renderers.messages import Call, Spoken
from mintjax.renderers.pieces import Own, Piece, Said, Source, Writer
from mintjax.renderers.reading import Attempt
from mintjax.renderers.rendered import Cursor, Rendered
from mintjax.renderers.tokenizer import Tokenizer


class Style(NamedTuple):
    """How messages are written.

    Attributes:
        template: whether the conversation is rewritten as the official template rewrites it; it has
            to be a whole one.
        split_turns: whether an assistant's text is encoded apart from what stands around it, as it
            is when the policy says it; otherwise a token may merge the two, as chat templates have
            it.
        supervised: whether it is written to be trained on. A last reply is then what the policy
            would say after the generation prompt that the messages before it give, the stop
            included, and the last token; after any other message stands no generation prompt.
    """

    template: bool
    split_turns: bool
    supervised: bool = False


def emit(
    form: Format,
    tokenizer: Tokenizer,
    spoken: Sequence[Spoken],
    *,
    tools: Tools,
    tools_hash: str,
    before: Rendered | None,
    prefill: str,
    style: Style,
) -> Rendered:
    """Writes messages after what stands before them.

    A generation prompt follows unless the last message is the assistant's, or ``style`` is for
    training. Of the conversation before, only the cursor is read.

    Args:
        form: the chat format.
        tokenizer: its vocabulary.
        spoken: the messages, at least one.
        tools: what the conversation declares; read at its start only.
        tools_hash: what the cursor records of them.
        before: the conversation so far; None at its start.
        prefill: the first words of the reply, put there for the policy.
        style: how to write them.

    Returns:
        The new ids, linked to ``before``.

    Example:
        >>> emit(ChatML(), view, [Spoken(0, "user", "hi")], tools=(), tools_hash="", before=None,
        ...      prefill="", style=Style(template=True, split_turns=False))
        Rendered(9 ids from 0, 2 messages)
    """
    writer = Writer(tokenizer, form.controls)
    count = spoken[-1].number + 1
    last = spoken[0].number - 1
    if before is None:
        role, said = None, _Said()
        if form.writes_bos and tokenizer.bos is not None:
            writer.control(tokenizer.bos, False, -1, Source.HEADER)
        writer.write([Own(form.prefix)], message=-1, own=Source.HEADER)
    else:
        role, said = "assistant", _said(form, tokenizer, before, spoken[0])
        writer.write([Own(said.mended)], message=last, own=Source.GLUE)
    ending = said.ending

    awaiting = spoken[-1].role != "assistant"
    spoken = attribute(spoken, said.calls, said.called)
    called = said.called + sum(len(message.calls) for message in spoken)
    calls = spoken[-1].calls
    spoken = _rewritten(form, spoken, style)
    if before is None:
        spoken = form.opening(spoken, tools)
    for message, following in zip(spoken, [*spoken[1:], None], strict=True):
        close, header = _between(form, role, message)
        held = _overlap(ending, close + _leading(header))
        writer.write([Own(close[held:])], message=last, own=Source.GLUE)
        header = _without(header, held - len(close))
        writer.write(header, message=message.number, own=Source.HEADER)
        next_role = None if following is None else following.role
        message = message._replace(after=role)
        if message.role == "assistant":
            if following is None and style.supervised:
                next_role = "tool" if message.calls else "user"
            body = form.body(message, next_role)
            sample = _is_sample(form, message) or (style.supervised and following is None)
            apart = style.split_turns or sample
            if apart:
                writer.cut()
            writer.write(body, message=message.number, own=Source.FORMAT, sampled=True)
            if apart:
                writer.cut()
            ending = form.written(body[-1].text) if body and isinstance(body[-1], Own) else ""
        else:
            body = form.body(message, next_role) if message.pieces is None else message.pieces
            writer.write(body, message=message.number, own=Source.FORMAT)
            ending = ""
        last, role = message.number, message.role

    after = Spoken(count, "assistant", "", reasoning="") if awaiting else None
    close, header = _between(form, role, after)
    if awaiting or not style.supervised:
        writer.write([Own(close[_overlap(ending, close) :])], message=last, own=Source.GLUE)
    if not style.supervised:
        writer.write(header, message=count, own=Source.HEADER)
        writer.write([Said(prefill)], message=count, own=Source.HEADER, said=Source.PREFILL)
    cursor = Cursor(
        renderer=form.name,
        tools=tools_hash,
        stops=stop_tokens(form, tokenizer) if before is None else before.cursor.stops,
        messages=count + awaiting,
        awaiting=awaiting,
        ending=close or ending,
        begins=form.begins_after(role),
        called=called,
        calls=calls,
    )
    return Rendered(writer.tokens(), cursor, before)


def _rewritten(form: Format, spoken: list[Spoken], style: Style) -> Sequence[Spoken]:
    """The messages as they are to be written: what the template leaves of them, or all that was said."""
    if not style.template:
        return [form.kept(one) for one in spoken]
    if style.supervised and spoken[-1].role == "assistant":
        *earlier, reply = spoken
        return [*(_by_template(form, earlier) if earlier else ()), form.kept(reply)]
    return _by_template(form, spoken)


def _by_template(form: Format, spoken: list[Spoken]) -> list[Spoken]:
    """What the template leaves of messages; of a reply that came as the text of a sample, all of it."""
    verbatim = {one.number: one for one in spoken if _is_sample(form, one)}
    return [
        form.kept(verbatim[one.number]) if one.number in verbatim else one
        for one in form.template(spoken)
    ]


def _is_sample(form: Format, message: Spoken) -> bool:
    """Whether a reply is the text of a sample, whose ids it is to have.

    Where the format writes reasoning, its text does not say which part of it that was.
    """
    return message.stopped and not form.reasons and not message.calls


class _Said(NamedTuple):
    """What the last reply has written of what follows it, what mends it, and the calls it made.

    ``called`` counts all calls of the conversation, those included.
    """

    ending: str = ""
    mended: str = ""
    calls: tuple[Call, ...] = ()
    called: int = 0


def _said(form: Format, tokenizer: Tokenizer, before: Rendered, following: Spoken) -> _Said:
    """How the last reply ended. What it says is read only where a tool answers it."""
    cursor = before.cursor
    if cursor.sampled is None:
        return _Said(cursor.ending, calls=cursor.calls, called=cursor.called)
    where = f"message {cursor.messages - 1} (assistant)"
    finish = form.finish(cursor.sampled, cursor.stops, tokenizer, where)
    mended = ""
    if finish.how != "stop":
        mended = form.mend(finish.body, tokenizer, cursor.begins)
    calls: tuple[Call, ...] = ()
    if following.role == "tool" and calls_tools(form):
        attempts = form.read(finish.body, tokenizer, ()).attempts
        for attempt in attempts:
            if attempt.status == "unclosed" and finish.how == "length":
                raise RenderError(
                    f"{following.where}: the reply before it was cut off inside a tool call "
                    f"({attempt.error}), which nothing can answer; go on with a user message, or "
                    "end the episode"
                )
        calls = made(attempts, cursor.called)
    return _Said(finish.ending, mended, calls, cursor.called + len(calls))


def made(attempts: Sequence[Attempt], called: int = 0) -> tuple[Call, ...]:
    """The calls among attempts at some, after ``called`` earlier ones."""
    calls = [attempt.call for attempt in attempts if attempt.call is not None]
    return tuple(
        Call(call["function"]["name"], call["function"]["arguments"], call.get("id"), place)
        for place, call in enumerate(calls, called)
    )


def attribute(spoken: Sequence[Spoken], calls: Sequence[Call], called: int = 0) -> list[Spoken]:
    """Says of every tool message which call it answers: by its id, else by its place in the run.

    Args:
        spoken: messages in order; the calls they make are numbered.
        calls: those that the reply before them made.
        called: how many calls were made before these messages.

    Example:
        >>> attribute([Spoken(2, "tool", "ok")], [Call("f", "{}")])[0].answers.name
        'f'
    """
    found: list[Spoken] = []
    place = 0
    for message in spoken:
        if message.role != "tool":
            calls, place = tuple(_numbered(message.calls, called)), 0
            called += len(calls)
            found.append(message._replace(calls=calls) if calls else message)
            continue
        by_id = [call for call in calls if message.call_id and call.id == message.call_id]
        by_place = list(calls[place : place + 1])
        answers = next(iter(by_id or by_place), None)
        if message.call_id and not by_id and answers is not None and answers.id is not None:
            answers = None  # it names another call than any that was made
        found.append(message._replace(answers=answers))
        place += 1
    return found


def _numbered(calls: Sequence[Call], called: int) -> Iterator[Call]:
    """Calls with their places, after ``called`` earlier ones."""
    return (call._replace(place=place) for place, call in enumerate(calls, called))


def _between(form: Format, before: str | None, after: Spoken | None) -> tuple[str, list[Piece]]:
    """``Format.between``, its header as pieces."""
    close, header = form.between(before, after)
    return close, [Own(header)] if isinstance(header, str) else list(header)


def _leading(header: Sequence[Piece]) -> str:
    """The format's own words that a header starts with."""
    return header[0].text if header and isinstance(header[0], Own) else ""


def _without(header: list[Piece], held: int) -> list[Piece]:
    """A header without the first words, which the stream already holds."""
    return [Own(header[0].text[held:]), *header[1:]] if held > 0 else header


def _overlap(held: str, target: str) -> int:
    """Length of the longest end of ``held`` that ``target`` begins with."""
    if not held:
        return 0
    longest = min(len(held), len(target))
    return next(n for n in range(longest, -1, -1) if target.startswith(held[len(held) - n :]))
