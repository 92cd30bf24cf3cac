"""openai: its asynchronous client, with requests side by side on its pool of connections."""

import asyncio
import json
import sys

import openai

base, texts = sys.argv[1], json.loads(sys.argv[2])


async def main() -> None:
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none") as client:
        made = await asyncio.gather(*(client.embeddings.create(model="embedder", input=text) for text in texts * 8))
    print(json.dumps({"vectors": [each.data[0].embedding for each in made]}))


asyncio.run(main())
