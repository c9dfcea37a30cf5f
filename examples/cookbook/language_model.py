"""A language model with a budget of tokens per minute.

`weight=` gives the cost of a call. The limit holds in any window of a minute, for first
attempts and retries together, and for all operators whose limits have the same name.
Answers with "try again later" pause all calls that share the limit.
"""

import asyncio

import aiomailbox as am

TOKENS_PER_SECOND = 100


class Model:
    """Stands for a client of such a service; it is busy at the third call."""

    def __init__(self) -> None:
        self.calls = 0
        self.tokens = 0

    async def __call__(self, text: str) -> str:
        self.calls += 1
        if self.calls == 3:
            raise am.RetryLater("too many requests", retry_after=0.1)
        self.tokens += tokens_of(text)
        await asyncio.sleep(0.01)
        return text.split(maxsplit=1)[0]


def tokens_of(text: str) -> int:
    """Return about how many tokens a text has."""
    return 2 * len(text.split())


async def main() -> None:
    model = Model()
    env = am.StreamExecutionEnvironment()
    texts = env.from_collection([f"text{n} {'word ' * 9}" for n in range(8)])
    first_words = texts.map_async(
        model,
        concurrency=4,
        timeout=30.0,
        retry=am.Retry(attempts=5),
        limit=am.RateLimit(TOKENS_PER_SECOND, per=1.0, name="model"),
        weight=tokens_of,
    )
    loop = asyncio.get_running_loop()
    begun = loop.time()
    print(await first_words.collect())
    print(model.calls, "calls,", model.tokens, "tokens")
    # With the call that was refused 180 tokens, of which 100 may go in any second.
    print("waited for tokens:", loop.time() - begun > 1)


if __name__ == "__main__":
    asyncio.run(main())
