"""64 sandboxes alive at once from one template."""
import concurrent.futures

import pytest


@pytest.mark.full
def test_64_sandboxes(own):
    count = 64
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        boxes = list(pool.map(lambda i: own.create("base", memory_mib=128), range(count)))
        answers = list(pool.map(lambda b: b.exec("sh", "-c", "echo $((6*7))")["stdout"], boxes))
        assert answers == ["42\n"] * count
        stats = list(pool.map(lambda b: own.client.get(f"{b.url}/stats"), boxes))
        pss = sorted(s["host"]["pss_bytes"] for s in stats)
        print(f"{count} alive: PSS per sandbox min {pss[0] >> 20} median {pss[count // 2] >> 20} "
              f"max {pss[-1] >> 20} MiB, together {sum(pss) >> 20} MiB")
        assert len({s['id'] for s in own.client.get('/v1/sandboxes')['sandboxes']}) == count
        list(pool.map(lambda b: b.remove(), boxes))
