"""The one loop that writes conversations: a whole one, or what new messages add to one."""

from collections.abc import Sequence

from mintjax.renderers.errors import RenderError
from mintjax.renderers.format import Format, Tools, stop_tokens
from mintjax.renderers.messages import Spoken
from mintjax.renderers.pieces import Own, Piece, Said, Source, Writer
from mintjax.renderers.rendered import Cursor, Rendered
from mintjax.renderers.tokenizer import Tokenizer


def emit(
    form: Format,
    tokenizer: Tokenizer,
    spoken: Sequence[Spoken],
    *,
    tools: Tools,
    tools_hash: str,
    before: Rendered | None,
    prefill: str,
    split_turns: bool,
) -> Rendered:
    """Writes messages after what stands before them.

    A generation prompt follows unless the last message is the assistant's. Of the conversation
    before, only the cursor is read.

    Args:
        form: the chat format.
        tokenizer: its vocabulary.
        spoken: the messages, at least one.
        tools: what the first system message declares; read at the start of a conversation only.
        tools_hash: what the cursor records of them.
        before: the conversation so far; None at its start.
        prefill: the first words of the reply, put there for the policy.
        split_turns: whether an assistant's text is encoded apart from what stands around it, as it
            is when the policy says it; otherwise a token may merge the two, as chat templates have
            it.

    Returns:
        The new ids, linked to ``before``.

    Example:
        >>> emit(ChatML(), view, [Spoken(0, "user", "hi")], tools=(), tools_hash="", before=None,
        ...      prefill="", split_turns=False)
        Rendered(9 ids from 0, 2 messages)
    """
    writer = Writer(tokenizer, form.controls)
    first = spoken[0].number
    if before is None:
        role, ending = None, ""
        if form.writes_bos and tokenizer.bos is not None:
            writer.control(tokenizer.bos, False, -1, Source.TEMPLATE)
    else:
        role = "assistant"
        ending = _ending(form, tokenizer, before.cursor, spoken[0])

    last = first - 1
    for number, after, body in _blocks(form, spoken, tools, opens=before is None):
        close, header = form.between(role, after)
        held = _overlap(ending, close + header)
        writer.write([Own(close[held:])], message=last)
        writer.write([Own(header[max(0, held - len(close)) :])], message=number)
        if after == "assistant":
            if split_turns:
                writer.cut()
            writer.write([*body, Own(form.stop)], message=number, sampled=True)
            if split_turns:
                writer.cut()
        else:
            writer.write(body, message=number)
        last, role, ending = number, after, form.stop if after == "assistant" else ""

    awaiting = role != "assistant"
    close, header = form.between(role, "assistant" if awaiting else None)
    writer.write([Own(close[_overlap(ending, close) :])], message=last)
    if awaiting:
        writer.write([Own(header), Said(prefill)], message=last + 1, said=Source.PREFILL)
    cursor = Cursor(
        renderer=form.name,
        tools=tools_hash,
        stops=stop_tokens(form, tokenizer),
        messages=first + len(spoken) + awaiting,
        awaiting=awaiting,
        ending=close or ending,
    )
    return Rendered(writer.tokens(), cursor, before)


def _blocks(
    form: Format, spoken: Sequence[Spoken], tools: Tools, *, opens: bool
) -> list[tuple[int, str, Sequence[Piece]]]:
    """Number, role and body of every message to write; the first may be the format's own."""
    blocks: list[tuple[int, str, Sequence[Piece]]] = []
    if opens:
        given = spoken[0] if spoken[0].role == "system" else None
        body = form.system(given, tools)
        if body is not None:
            blocks.append((-1 if given is None else 0, "system", body))
        spoken = spoken if given is None else spoken[1:]
    return blocks + [(message.number, message.role, form.body(message)) for message in spoken]


def _ending(form: Format, tokenizer: Tokenizer, cursor: Cursor, following: Spoken) -> str:
    """How the last reply ends. What it says is read only where a tool answers it."""
    if cursor.sampled is None:
        return cursor.ending
    where = f"message {cursor.messages - 1} (assistant)"
    finish = form.finish(cursor.sampled, tokenizer, where)
    if form.declares_tools and following.role == "tool" and finish.how == "length":
        _, unread = form.read(finish, tokenizer)
        if unread:
            raise RenderError(
                f"{following.where}: the reply before it was cut off inside a tool call "
                f"({unread[0]}), which nothing can answer; go on with a user message, or end the "
                "episode"
            )
    return finish.ending


def _overlap(held: str, target: str) -> int:
    """Length of the longest end of ``held`` that ``target`` begins with."""
    longest = min(len(held), len(target))
    return next(n for n in range(longest, -1, -1) if target.startswith(held[len(held) - n :]))
