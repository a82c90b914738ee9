/** Builds the files that the server serves. `node build.mjs --check` compares them with the sources instead of writing them. */
import { readFile, writeFile } from "node:fs/promises";
import { gzipSync } from "node:zlib";

import { build, transform } from "esbuild";

const OUT = new URL("../server/tailrace/server/http/playground/", import.meta.url);
const ENTRIES = {
	"tailrace-chat.js": "src/chat.ts",
	"tailrace-client.js": "src/client.ts",
	"tailrace-highlight.js": "src/highlight.ts",
	"tailrace-math.js": "src/math.ts",
};

const styles = {
	name: "styles",
	setup({ onLoad }) {
		onLoad({ filter: /\.css$/ }, async ({ path }) => {
			const { code } = await transform(await readFile(path, "utf8"), { loader: "css", minify: true, target: "esnext" });
			return { contents: code, loader: "text" };
		});
	},
};

let differs = false;
for (const [name, entry] of Object.entries(ENTRIES)) {
	const { outputFiles } = await build({
		absWorkingDir: import.meta.dirname,
		entryPoints: [entry],
		bundle: true,
		charset: "utf8",
		format: "esm",
		minify: true,
		target: "es2022",
		legalComments: "inline",
		plugins: [styles],
		write: false,
	});
	const { contents, text } = outputFiles[0];
	console.log(`${name}: ${contents.length} bytes, ${gzipSync(contents, { level: 9 }).length} compressed`);
	const path = new URL(name, OUT);
	if (!process.argv.includes("--check")) await writeFile(path, text);
	else if ((await readFile(path, "utf8").catch(() => "")) !== text) {
		console.error(`${name} differs from its sources: run \`make ui\` and commit it.`);
		differs = true;
	}
}
process.exitCode = differs ? 1 : 0;
