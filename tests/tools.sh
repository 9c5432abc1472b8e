#!/bin/sh
# Chromium for the tests of the pages (from the system's packages) and Azurite, a real Azure server (from npm).
# Never fails: a test that misses its tool says so.
if ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null && ! command -v google-chrome >/dev/null; then
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium) \
            >/dev/null 2>&1 || echo "tools: chromium could not be installed; the tests of the pages are skipped" >&2
    else
        echo "tools: no chromium; 'apt-get install chromium' as root runs the tests of the pages, too" >&2
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
