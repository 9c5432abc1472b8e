#!/bin/sh
# What pip cannot bring: Chromium for the tests of the pages, fish and zsh for those of the shell completion (from the
# system's packages), and Azurite, a real Azure server (from npm). Never fails: a test that misses its tool says so.
missing=
for tool in chromium fish zsh; do
    command -v $tool >/dev/null || missing="$missing $tool"
done
if [ -n "$missing" ]; then
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        # shellcheck disable=SC2086  # a list of packages
        (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing) \
            >/dev/null 2>&1 || echo "tools: could not install$missing; the tests that need them are skipped" >&2
    else
        echo "tools: without$missing some tests are skipped; as root: apt-get install$missing" >&2
    fi
fi
if command -v npm >/dev/null; then
    home=.cache/azurite
    if ! cmp -s tests/cloud/azurite/package-lock.json $home/installed; then
        mkdir -p $home && cp tests/cloud/azurite/package*.json $home/ &&
            npm ci --silent --ignore-scripts --no-audit --no-fund --prefix $home >/dev/null 2>&1 &&
            cp tests/cloud/azurite/package-lock.json $home/installed ||
            echo "tools: azurite could not be installed; the tests against Azure are skipped" >&2
    fi
else
    echo "tools: no npm; the tests against Azure are skipped" >&2
fi
