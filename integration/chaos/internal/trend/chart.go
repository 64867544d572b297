//go:build unix

package trend

import (
	"encoding/xml"
	"fmt"
	"math"
	"strings"
	"time"
)

// Panel is one picture of a chart: lines over the time of the run, with a common axis.
type Panel struct {
	Title string
	Lines []*Series
	Log   bool // the axis has tenfolds
}

// The layout, in pixels.
const (
	panelWidth  = 440
	panelHeight = 130
	plotLeft    = 66
	plotTop     = 30
	plotWidth   = panelWidth - plotLeft - 14
	plotHeight  = panelHeight - plotTop - 14
	headHeight  = 50
	steps       = 120 // of a line: each is the mean of the points that fall into it
)

const chartStyle = `
    .card { fill: #ffffff; stroke: #d0d7de; } .ink { fill: #1f2328; } .soft { fill: #59636e; }
    .axis { stroke: #d0d7de; } .bound { stroke: #c4232d; stroke-dasharray: 5 3; }
    .line0 { stroke: #0a5fc2; } .line1 { stroke: #bc4c00; } .line2 { stroke: #1a7f37; }
    .name0 { fill: #0a5fc2; } .name1 { fill: #bc4c00; } .name2 { fill: #1a7f37; } path { fill: none; }
    @media (prefers-color-scheme: dark) {
      .card { fill: #0d1117; stroke: #3d444d; } .ink { fill: #e6edf3; } .soft { fill: #9da7b1; }
      .axis { stroke: #3d444d; } .bound { stroke: #ff7b72; }
      .line0 { stroke: #4f9bf0; } .line1 { stroke: #f0883e; } .line2 { stroke: #3fb950; }
      .name0 { fill: #4f9bf0; } .name1 { fill: #f0883e; } .name2 { fill: #3fb950; }
    }
`

// Chart draws the panels, two in a row, as SVG.
func Chart(title, describes string, whole time.Duration, panels []Panel) string {
	height := headHeight + (len(panels)+1)/2*panelHeight + 10
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" `+
		`role="img" aria-labelledby="title desc" font-family="system-ui, sans-serif" font-size="11">`+"\n",
		2*panelWidth, height)
	fmt.Fprintf(&b, "  <title id=\"title\">%s</title>\n  <desc id=\"desc\">%s</desc>\n  <style>%s  </style>\n",
		escaped(title), escaped(describes), chartStyle)
	fmt.Fprintf(&b, "  <rect class=\"card\" x=\".5\" y=\".5\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", 2*panelWidth-1,
		height-1)
	fmt.Fprintf(&b, "  <text class=\"ink\" x=\"20\" y=\"25\" font-size=\"15\" font-weight=\"600\">%s</text>\n"+
		"  <text class=\"soft\" x=\"20\" y=\"42\">%s</text>\n", escaped(title), escaped(describes))
	for i, p := range panels {
		fmt.Fprintf(&b, "  <g transform=\"translate(%d %d)\">\n", i%2*panelWidth, headHeight+i/2*panelHeight)
		p.draw(&b, max(whole, 1))
		b.WriteString("  </g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// draw draws the panel: its lines, where the thirds of the run meet, and the bounds over the last third.
func (p Panel) draw(b *strings.Builder, whole time.Duration) {
	lines := make([][]Point, len(p.Lines))
	for i, s := range p.Lines {
		lines[i] = means(s.Points, whole)
	}
	const bottom, right = plotTop + plotHeight, plotLeft + plotWidth
	fmt.Fprintf(b, "    <text class=\"ink\" x=\"20\" y=\"18\" font-weight=\"600\">%s</text>\n", escaped(p.Title))
	fmt.Fprintf(b, "    <path class=\"axis\" d=\"M%d %dV%dH%dM%d %dv-4M%d %dv-4\"/>\n", plotLeft, plotTop, bottom,
		right, plotLeft+plotWidth/3, bottom, plotLeft+2*plotWidth/3, bottom)
	least, most := p.axis(lines)
	y := func(v float64) float64 {
		part := v / most
		if p.Log {
			part = math.Log(max(v, least)/least) / math.Log(most/least)
		}
		return bottom - plotHeight*min(1, max(0, part))
	}
	for _, v := range []float64{least, most} {
		fmt.Fprintf(b, "    <text class=\"soft\" x=\"%d\" y=\"%.0f\" text-anchor=\"end\">%s</text>\n", plotLeft-5,
			y(v)+4, p.Lines[0].Unit.Say(v))
	}
	at := right
	for i, s := range p.Lines {
		fmt.Fprintf(b, "    <path class=\"line%d\" d=\"", i%3)
		for n, point := range lines[i] {
			fmt.Fprintf(b, "%c%.0f %.0f", "ML"[min(n, 1)], plotLeft+plotWidth*float64(point.At)/float64(whole),
				y(point.Value))
		}
		b.WriteString("\"/>\n")
		if g := s.Growth(); g.Judged {
			fmt.Fprintf(b, "    <path class=\"bound\" d=\"M%d %.0fH%d\"/>\n", plotLeft+2*plotWidth/3, y(g.Most), right)
		}
		if len(p.Lines) > 1 {
			name := strings.TrimPrefix(s.Name, p.Title+", ")
			fmt.Fprintf(b, "    <text class=\"name%d\" x=\"%d\" y=\"18\" text-anchor=\"end\">%s</text>\n", i%3, at,
				escaped(name))
			at -= 16 + 6*len(name)
		}
	}
}

// axis is what the axis shows: from nothing, or from the tenfold below the least figure, to all lines and bounds.
func (p Panel) axis(lines [][]Point) (least, most float64) {
	least = math.Inf(1)
	for i, s := range p.Lines {
		for _, point := range lines[i] {
			most = max(most, point.Value)
			if point.Value > 0 {
				least = min(least, point.Value)
			}
		}
		if g := s.Growth(); g.Judged {
			most = max(most, g.Most)
		}
	}
	switch {
	case most == 0:
		return 0.1, 1
	case p.Log:
		return math.Pow(10, math.Floor(math.Log10(least))), math.Pow(10, math.Ceil(math.Log10(most*1.001)))
	}
	return 0, most
}

// means are the means of the points that fall into each step of the run.
func means(points []Point, whole time.Duration) (out []Point) {
	n := 0
	for _, p := range points {
		at := time.Duration(int(steps*p.At/whole)) * whole / steps
		if len(out) == 0 || out[len(out)-1].At != at {
			out, n = append(out, Point{At: at}), 0
		}
		last := &out[len(out)-1]
		last.Value = (last.Value*float64(n) + p.Value) / float64(n+1)
		n++
	}
	return out
}

func escaped(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes everything
	return b.String()
}
