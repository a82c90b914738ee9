/**
 * Uses the chat in Firefox, over WebDriver BiDi: `node firefox.mjs FIREFOX URL PICTURE < texts.json`; prints a JSON object.
 *
 * The texts are hostile: each is rendered as a response, under the policy of the page.
 */
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(new URL("./ui_streams/javascript/package.json", import.meta.url));
const { launch } = (await import(require.resolve("puppeteer-core"))).default;

const [executablePath, url, picture] = process.argv.slice(2);
const texts = JSON.parse(readFileSync(0, "utf8"));
const faults = [];
const browser = await launch({ browser: "firefox", executablePath, headless: true });
try {
	const page = await browser.newPage();
	await page.setViewport({ width: 1000, height: 700 });
	page.on("pageerror", (error) => faults.push(error.message));
	page.on("console", (entry) => ["error", "warn"].includes(entry.type()) && faults.push(entry.text()));
	await page.goto(url);
	const inChat = (script, argument) =>
		page.evaluate(`(async (given) => { const chat = document.querySelector("tailrace-chat"); const root = chat.shadowRoot; ${script} })(${JSON.stringify(argument)})`);
	const until = async (condition) => {
		for (let tries = 0; !(await inChat(`return Boolean(${condition});`)); tries += 1) {
			if (tries > 300) throw new Error(`never: ${condition}; ${await inChat("return root.textContent;")}`);
			await new Promise((resolve) => setTimeout(resolve, 50));
		}
	};
	await inChat(`await chat.opened; await chat.send("hello");`);
	await until(`root.querySelector("article[data-state=completed]")`);
	await until(`root.querySelector("code .hljs-keyword") && root.querySelector("math")`);
	const html = () => inChat(`return root.querySelector(".block.text .md").innerHTML;`);
	const streamed = await html();
	await page.reload();
	await until(`root.querySelector("article[data-state=completed] code .hljs-keyword") && root.querySelector("math")`);
	const reloaded = await html();
	await page.screenshot({ path: picture });
	const executed = await page.evaluate(
		`(async (texts) => {
			const { Markdown } = await import("/tailrace-chat.js");
			window.executed = 0;
			window.hit = window.alert = () => { window.executed += 1; };
			for (const text of texts) {
				const root = document.createElement("div");
				document.body.append(root);
				const markdown = new Markdown(root);
				for (const character of text) markdown.add(character);
				markdown.end();
				if (root.querySelector("a[href^='javascript:' i]")) window.executed += 1;
				for (const node of root.querySelectorAll("button, figure, sup, input")) node.click();
				if (root.querySelector("script, iframe, object, embed, [onclick], [onerror], [onload]")) window.executed += 1;
				await new Promise(requestAnimationFrame);
				root.remove();
			}
			return window.executed;
		})(${JSON.stringify(texts)})`,
	);
	console.log(JSON.stringify({ version: await browser.version(), streamed, reloaded, executed, faults }));
} finally {
	await browser.close();
}
