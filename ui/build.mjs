/**
 * Builds the files that the server serves. `node build.mjs --check` compares them with the sources instead of writing them, and
 * `--package` writes those of the npm package.
 */
import { createHash } from "node:crypto";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { gzipSync } from "node:zlib";

import { build, transform } from "esbuild";

const PACKAGE = process.argv.includes("--package");
const OUT = new URL(PACKAGE ? "dist/" : "../server/tailrace/server/http/playground/", import.meta.url);
if (PACKAGE) await rm(OUT, { recursive: true, force: true });
await mkdir(OUT, { recursive: true });
/** A module follows those that it imports: their hashes are in it. */
const ENTRIES = {
	"tailrace-client.js": "src/client.ts",
	"tailrace-highlight.js": "src/highlight.ts",
	"tailrace-math.js": "src/math.ts",
	"tailrace-chat.js": "src/chat.ts",
	...(PACKAGE && { "tailrace-react.js": "src/react.ts" }),
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

/** Query with the hash of a file: the server answers it with `immutable`. Bundlers name the files of the package themselves. */
const hashes = {};
const query = (name) => (PACKAGE ? "" : `?v=${hashes[name]}`);

/** Modules that are imported when they are needed are files of their own, beside the module that imports them. */
const separate = {
	name: "separate",
	setup({ onResolve }) {
		onResolve({ filter: /^\.\/\w+\.ts$/ }, ({ kind, path }) => {
			if (kind !== "dynamic-import") return;
			const name = `tailrace-${path.slice(2, -3)}.js`;
			return { path: `./${name}${query(name)}`, external: true };
		});
	},
};

let differs = false;
const put = async (name, text) => {
	const path = new URL(name, OUT);
	if (!process.argv.includes("--check")) await writeFile(path, text);
	else if ((await readFile(path, "utf8").catch(() => "")) !== text) {
		console.error(`${name} differs from its sources: run \`make ui\` and commit it.`);
		differs = true;
	}
};
for (const [name, entry] of Object.entries(ENTRIES)) {
	const { outputFiles } = await build({
		absWorkingDir: import.meta.dirname,
		entryPoints: [entry],
		bundle: true,
		charset: "utf8",
		format: "esm",
		external: ["react"],
		minify: true,
		target: "es2022",
		legalComments: "inline",
		plugins: [styles, separate],
		write: false,
	});
	const { contents, text } = outputFiles[0];
	console.log(`${name}: ${contents.length} bytes, ${gzipSync(contents, { level: 9 }).length} compressed`);
	hashes[name] = createHash("sha256").update(contents).digest("hex").slice(0, 16);
	await put(name, text);
}
if (!PACKAGE) {
	const page = await readFile(new URL("index.html", OUT), "utf8");
	await put("index.html", page.replace(/tailrace-chat\.js[^"]*/, `tailrace-chat.js${query("tailrace-chat.js")}`));
}
process.exitCode = differs ? 1 : 0;
