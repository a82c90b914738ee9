/** The panels beside the log, and their buttons. */
import { icon } from "./dom.ts";

export type Panel = HTMLElement & { toggle?: HTMLButtonElement };

/** The button that shows and hides a panel; `flipped` is called after that. */
export function panelButton(label: string, drawing: string, panel: Panel, flipped: () => void): HTMLButtonElement {
	const flip = () => {
		panel.hidden = !panel.hidden;
		panel.toggle!.setAttribute("aria-expanded", `${!panel.hidden}`);
		flipped();
	};
	return (panel.toggle = icon(label, drawing, flip, { "aria-expanded": "false" }));
}

/** Close these panels. */
export function closePanels(...panels: Panel[]): void {
	for (const panel of panels) if (!panel.hidden) panel.toggle!.click();
}
