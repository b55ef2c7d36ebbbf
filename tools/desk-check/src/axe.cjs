// What axe finds on a page: `node axe.cjs PAGE WIDTH light|dark SCREENSHOT`, with axe-core and puppeteer-core in NODE_PATH. Prints one JSON object.
const fs = require('node:fs');
const axe = require('axe-core');
const puppeteer = require('puppeteer-core');

(async () => {
  const [page_file, width, scheme, screenshot] = process.argv.slice(2);
  const browser = await puppeteer.launch({
    executablePath: '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'],
    protocolTimeout: 300000,
  });
  try {
    const page = await browser.newPage();
    await page.setViewport({ width: Number(width), height: 900 });
    await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
    // The page's own policy lets no script run, axe's neither.
    await page.setBypassCSP(true);
    await page.goto('file://' + page_file, { waitUntil: 'load', timeout: 120000 });
    const [scroll_width, window_width] =
      await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
    await page.evaluate(axe.source);
    const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
    fs.writeFileSync(screenshot, await page.screenshot());
    const texts = violations.map(({ id, impact, nodes }) => `${id} (${impact}) ${nodes.length}x ${nodes[0].html.slice(0, 160)}`);
    console.log(JSON.stringify({ violations: texts, scroll_width, window: window_width }));
  } finally {
    await browser.close();
  }
})().catch((error) => {
  console.error(String(error));
  process.exit(1);
});
